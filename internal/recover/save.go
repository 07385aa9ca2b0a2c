package recover

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ReportFile is the report's name in the folder.
const ReportFile = "recovery.json"

// savedName is the name that an executable is saved under: its own, where that is a name at all.
func savedName(path string) string {
	name := filepath.Base(path)
	if name == "." || name == "/" || name == ReportFile || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") || len(name) > 200 || plain(name) != name ||
		strings.ContainsRune(name, '\uFFFD') {
		return "executable"
	}
	return strings.ReplaceAll(name, ":", "-") // memfd:name
}

// Save copies the executable of a stale process into dir, an existing folder, byte for byte, reads it back, fills in what r says of it,
// and writes r beside it. The process must still be the one that r describes. What couldn't be finished is removed.
func Save(r *Report, dir string) error {
	p := proc{pid: int(r.PID)}
	src, err := os.Open(p.path("exe"))
	if err != nil {
		return classify(p.pid, err)
	}
	defer src.Close()
	// The file is open: from here on the process may end.
	if again, err := p.process(); err != nil || again.StartUS != r.Process.StartUS {
		return fmt.Errorf("process %d ended before its executable was opened: %w", p.pid, ErrNoProcess)
	}
	e := &r.Executable
	name := savedName(e.Path)
	if err := copyFile(e, src, filepath.Join(dir, name)); err != nil {
		return err
	}
	e.SavedAs = name
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", ReportFile, err)
	}
	if err := os.WriteFile(filepath.Join(dir, ReportFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", ReportFile, err)
	}
	return nil
}

// copyFile copies src to path, which must be new, and makes sure that what lies there is what was read.
func copyFile(e *Executable, src *os.File, path string) (err error) {
	dst, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o755)
	if err != nil {
		return fmt.Errorf("saving the executable: %w", err)
	}
	defer func() {
		if cerr := dst.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("saving the executable: %w", cerr)
		}
		if err != nil {
			os.Remove(path)
		}
	}()
	read := sha256.New()
	n, err := io.Copy(io.MultiWriter(dst, read), src)
	if err != nil {
		return fmt.Errorf("saving the executable: %w", err)
	}
	if err := dst.Sync(); err != nil {
		return fmt.Errorf("saving the executable: %w", err)
	}
	written := sha256.New()
	if _, err := io.Copy(written, io.NewSectionReader(dst, 0, n+1)); err != nil {
		return fmt.Errorf("reading the saved executable back: %w", err)
	}
	e.Bytes, e.SHA256 = n, hex.EncodeToString(read.Sum(nil))
	if got := hex.EncodeToString(written.Sum(nil)); got != e.SHA256 {
		return fmt.Errorf("the saved executable reads back as %s, what was read was %s", got, e.SHA256)
	}
	e.GNUBuildID, e.GoBuildID = buildIDs(dst)
	return nil
}
