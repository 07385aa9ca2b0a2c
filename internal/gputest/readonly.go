package gputest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// symbolName is what a function of libcuda, libcudart or NVML is called.
var symbolName = regexp.MustCompile(`^(cu[A-Z]|cuda[A-Z]|nvml[A-Z])\w+$`)

// CheckReadOnly fails t where the package in the current folder could call a driver function beyond its allow-lists. A function
// can be called only through a dl.Symbol, and a dl.Symbol comes only from Library.Resolve or Library.Symbol. So: Symbol is never
// used; Resolve is given nothing but the variables named in lists; no literal that looks like a function's name stands anywhere
// but in allowed or, for looking up presence, in the file named presence.
func CheckReadOnly(t *testing.T, lists []string, allowed []string, presence string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files here: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range readOnlyViolations(name, string(src), lists, allowed, presence) {
			t.Error(v)
		}
	}
}

func readOnlyViolations(name, src string, lists, allowed []string, presence string) []string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, 0)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	say := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s: ", set.Position(n.Pos()))+fmt.Sprintf(format, args...))
	}
	resolved := make(map[ast.Node]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Resolve" {
				break
			}
			if id, ok := n.Args[0].(*ast.Ident); len(n.Args) == 1 && ok && slices.Contains(lists, id.Name) {
				resolved[sel] = true
			}
		case *ast.SelectorExpr:
			pkg, isIdent := n.X.(*ast.Ident)
			switch {
			case n.Sel.Name == "Symbol" && !(isIdent && pkg.Name == "dl") && !reportField(n):
				say(n, "Symbol makes any name callable")
			case n.Sel.Name == "Resolve" && !resolved[n]:
				say(n, "Resolve may only be given %v", lists)
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING || name == presence {
				break
			}
			if s, err := strconv.Unquote(n.Value); err == nil && symbolName.MatchString(s) && !slices.Contains(allowed, s) {
				say(n, "%s is not among the functions that may be called", s)
			}
		}
		return true
	})
	return found
}

// reportField tells the field Symbol of a report, a code's name, from the method of dl.Library: the variables that hold a report
// are named as below.
func reportField(n *ast.SelectorExpr) bool {
	switch x := n.X.(type) {
	case *ast.Ident:
		return x.Name == "call"
	case *ast.SelectorExpr:
		return x.Sel.Name == "Init"
	}
	return false
}
