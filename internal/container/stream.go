package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errTooMuch says that a container wrote more than is read.
var errTooMuch = errors.New("the container wrote more than the limit")

// output is what a container wrote, up to its limits.
type output struct {
	stdout, stderr       []byte
	maxStdout, maxStderr int
}

// read reads a multiplexed stream until its end: frames of one byte that names the stream (1 stdout, 2 stderr), three zeros, a
// big-endian length of four bytes and that many bytes (engine API, ContainerAttach). It stops at errTooMuch with what fits.
func (o *output) read(r io.Reader) error {
	var header [8]byte
	for {
		switch _, err := io.ReadFull(r, header[:]); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("reading the container's output: %w", err)
		}
		if header[0] > 3 || header[1]|header[2]|header[3] != 0 {
			return fmt.Errorf("reading the container's output: not a frame: %x", header)
		}
		into, limit := &o.stdout, o.maxStdout
		if header[0] >= 2 { // 3 is the engine's own errors
			into, limit = &o.stderr, o.maxStderr
		}
		size := int64(binary.BigEndian.Uint32(header[4:]))
		room := int64(limit - len(*into))
		b, err := io.ReadAll(io.LimitReader(r, min(size, room)))
		*into = append(*into, b...)
		switch {
		case err != nil:
			return fmt.Errorf("reading the container's output: %w", err)
		case int64(len(b)) < min(size, room):
			return fmt.Errorf("reading the container's output: %w", io.ErrUnexpectedEOF)
		case size > room:
			return errTooMuch
		}
	}
}
