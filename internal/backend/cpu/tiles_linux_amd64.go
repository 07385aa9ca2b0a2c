package cpu

import "golang.org/x/sys/unix"

// allowTiles asks the kernel for the tiles' state, which a process must do before it uses them: their 8 KiB are part of every
// signal's frame afterwards (Linux, Documentation/arch/x86/xstate.rst). The stacks that Go handles signals on hold 32 KiB.
func allowTiles() bool {
	const reqPermission, tileData = 0x1023, 18
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, reqPermission, tileData, 0)
	return errno == 0
}
