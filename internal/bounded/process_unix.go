//go:build unix

package bounded

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives the command a process group of its own, so that its children can be killed with it.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killTree(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	_ = p.Kill()
}

func fate(s *os.ProcessState) (Outcome, int, string) {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Signaled, -1, ws.Signal().String()
	}
	return Exited, s.ExitCode(), ""
}
