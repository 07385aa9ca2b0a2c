// Package h200 tests the scripts beside it without a GPU: on real files, and on the fake driver at small counts.
package h200

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Each file under testdata is one behaviour of a script.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("SCRIPTS", scripts)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"noise": noise},
	})
}

// noise is `noise FILE BYTES`: a file of so many bytes, no two places of which are alike.
func noise(ts *testscript.TestScript, neg bool, args []string) {
	var n int
	_, err := fmt.Sscan(args[1], &n)
	ts.Check(err)
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o644))
}
