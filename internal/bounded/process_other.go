//go:build !unix

package bounded

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func killTree(p *os.Process) { _ = p.Kill() }

func fate(s *os.ProcessState) (Outcome, int, string) { return Exited, s.ExitCode(), "" }
