package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// zstdMagic begins a Zstandard frame (RFC 8878, 3.1.1).
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// maxUnpacked bounds what a compressed file may hold.
const maxUnpacked = 64 << 20

// readAtMost reads a regular file of up to limit bytes; one that is a Zstandard frame is returned unpacked, of up to maxUnpacked bytes.
func readAtMost(path string, limit int64) ([]byte, error) {
	// Looked at before it is opened: opening a pipe waits for a writer.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it isn't a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := atMost(f, limit)
	if err != nil || !bytes.HasPrefix(data, zstdMagic) {
		return data, err
	}
	z, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	defer z.Close()
	if data, err = atMost(z, maxUnpacked); err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	return data, nil
}

// maxKey bounds the file of a key.
const maxKey = 64 << 10

// readKey reads a file with a key; it may be a pipe, so that a password manager can print into it.
func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := atMost(f, maxKey)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

func atMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return data, err
}
