package mps

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// run starts the daemon's process. The kernel sends the parent-death signal when the thread that started it ends, so that thread
// stays for as long as the daemon does.
func (d *Daemon) run(args, env []string) error {
	if err := os.MkdirAll(d.o.Log, 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(d.o.Log, "daemon.txt"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(d.o.Control, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			d.err = cmd.Wait()
		}
		close(d.ended)
	}()
	err = <-started
	out.Close()
	if err == nil {
		d.PID = cmd.Process.Pid
	}
	return err
}

// Kill ends the daemon's process group at once and waits for the daemon.
func (d *Daemon) Kill() {
	if d.PID > 0 && d.Alive() {
		_ = syscall.Kill(-d.PID, syscall.SIGKILL)
		<-d.ended
	}
}
