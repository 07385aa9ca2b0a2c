package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// An interference run gets its page, with advice where an objective is given.
func TestReportInterfere(t *testing.T) {
	example, err := filepath.Abs("../../internal/interfere/record/testdata/example")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files:               []string{"testdata/matrix/report.txtar"},
		RequireExplicitExec: true,
		Setup:               func(e *testscript.Env) error { return os.CopyFS(filepath.Join(e.WorkDir, "matrix"), os.DirFS(example)) },
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"replace": replace},
	})
}
