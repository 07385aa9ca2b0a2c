//go:build !linux

package mps

import "errors"

func (d *Daemon) run(args, env []string) error {
	close(d.ended)
	return errors.New("MPS exists on Linux only")
}

// Kill does nothing: no daemon can have been started.
func (d *Daemon) Kill() {}
