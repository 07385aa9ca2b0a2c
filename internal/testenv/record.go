package testenv

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Skip is a test that could not run here.
type Skip struct {
	Package string `json:"package"` // folder in the module
	Test    string `json:"test"`
	Needs   string `json:"needs"`
	Hint    string `json:"hint"`
}

var records struct {
	sync.Mutex
	file *os.File
}

// record keeps a skip for tools/skips: `go test` shows nothing of a package that passes, and a cached package doesn't even
// run, so each package leaves its list in a folder of the checkout's own under the temporary folder. A failure to record is
// not the test's.
func record(s Skip) {
	records.Lock()
	defer records.Unlock()
	dir, root, err := folder()
	if err != nil {
		return
	}
	wd, _ := os.Getwd() // `go test` runs a package's tests in its folder
	if s.Package, err = filepath.Rel(root, wd); err != nil {
		return
	}
	if records.file == nil {
		if os.MkdirAll(dir, 0o755) != nil {
			return
		}
		name := fmt.Sprintf("%x.jsonl", sha256.Sum256([]byte(s.Package)))
		if records.file, err = os.Create(filepath.Join(dir, name)); err != nil {
			return
		}
	}
	if line, err := json.Marshal(s); err == nil {
		records.file.Write(append(line, '\n'))
	}
}

// Skips lists what the packages of this checkout recorded when each last skipped anything.
func Skips() ([]Skip, error) {
	dir, _, err := folder()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Skip
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var s Skip
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				all = append(all, s)
			}
		}
		f.Close()
	}
	return all, nil
}

// folder returns where this checkout's records lie, and the checkout's root.
func folder() (dir, root string, err error) {
	root, err = os.Getwd()
	if err != nil {
		return "", "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(root)
		if up == root {
			return "", "", os.ErrNotExist
		}
		root = up
	}
	sum := sha256.Sum256([]byte(root))
	return filepath.Join(os.TempDir(), fmt.Sprintf("cotenant-skips-%d-%x", os.Getuid(), sum[:6])), root, nil
}
