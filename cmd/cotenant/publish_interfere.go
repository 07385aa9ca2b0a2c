package main

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"cotenant/internal/interfere"
	"cotenant/internal/publish"
)

// publishInterference publishes an interference run's folder, which must verify, and verifies what it is about to write: one document,
// compressed, since its rows are many.
func publishInterference(c *cobra.Command, path, out string, o publish.Options, asJSON bool) error {
	r, _, err := interfere.Verify(path)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	if !r.Holds {
		return &exit{exitUnchecked, fmt.Errorf("%s: %d rules failed: see cotenant verify %s", path, len(r.Failed()), path), ""}
	}
	files, err := interfere.Files(path)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	p, err := publish.Folder(publish.InterferenceOperation, files, o)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	if r, _, err := interfere.VerifyPublished(p.Document); err != nil || !r.Holds {
		return &exit{exitUnchecked, fmt.Errorf("the public form doesn't verify: %v %+v", err, r), ""}
	}
	if err := newFolder(c, out); err != nil {
		return err
	}
	compressed := func(w io.Writer) error {
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		if _, err := z.Write(p.Document); err != nil {
			return err
		}
		return z.Close()
	}
	return writePublished(c, out, []publicFile{{"evidence.json.zst", compressed}}, p.List, asJSON)
}
