// Command ptx compiles the CUDA C of internal/kernels to the PTX that is checked in there, with Debian's clang-19, and writes
// the manifest of hashes.
//
//	go run ./tools/ptx           # writes
//	go run ./tools/ptx -check    # writes nothing, fails where what is checked in differs by a byte
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"cotenant/internal/kernels"
)

// module is one PTX file: a source compiled for one architecture and PTX version.
type module struct{ source, arch, ptx string }

var modules = []module{
	{"probe.cu", "sm_70", "ptx78"},
	{"skinny.cu", "sm_80", "ptx78"},
	{"skinny.cu", "sm_90a", "ptx80"},
	{"mma.cu", "sm_80", "ptx78"},
	{"wgmma.cu", "sm_90a", "ptx80"},
	{"attend_one.cu", "sm_80", "ptx78"},
	{"attend_many.cu", "sm_80", "ptx78"},
	{"attend_one.cu", "sm_90a", "ptx80"},
	{"attend_wgmma.cu", "sm_90a", "ptx80"},
	{"engine.cu", "sm_80", "ptx78"},
	{"engine.cu", "sm_90a", "ptx80"},
	{"sample.cu", "sm_80", "ptx78"},
	{"sample.cu", "sm_90a", "ptx80"},
	{"interfere.cu", "sm_80", "ptx78"},
	{"quant_q8_0.cu", "sm_80", "ptx78"},
	{"quant_q8_0.cu", "sm_90a", "ptx80"},
	{"quant_q4_0.cu", "sm_80", "ptx78"},
	{"quant_q4_0.cu", "sm_90a", "ptx80"},
	{"quant_q4_1.cu", "sm_80", "ptx78"},
	{"quant_q4_1.cu", "sm_90a", "ptx80"},
	{"quant_q5_0.cu", "sm_80", "ptx78"},
	{"quant_q5_0.cu", "sm_90a", "ptx80"},
	{"quant_q5_1.cu", "sm_80", "ptx78"},
	{"quant_q5_1.cu", "sm_90a", "ptx80"},
	{"quant_q4_k.cu", "sm_80", "ptx78"},
	{"quant_q4_k.cu", "sm_90a", "ptx80"},
	{"quant_q5_k.cu", "sm_80", "ptx78"},
	{"quant_q5_k.cu", "sm_90a", "ptx80"},
	{"quant_q6_k.cu", "sm_80", "ptx78"},
	{"quant_q6_k.cu", "sm_90a", "ptx80"},
}

func main() {
	dir := flag.String("dir", "internal/kernels", "folder of sources and output")
	check := flag.Bool("check", false, "compare, write nothing")
	compiler := flag.String("clang", "clang-19", "the compiler")
	flag.Parse()
	files, err := build(*compiler, *dir)
	if err == nil {
		err = settle(files, *dir, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ptx:", err)
		os.Exit(1)
	}
}

func settle(files map[string][]byte, dir string, check bool) error {
	for name, want := range files {
		path := filepath.Join(dir, name)
		if !check {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s is not what its source compiles to: run go run ./tools/ptx", path)
		}
	}
	return nil
}

// build returns the content of every file that is made from the sources.
func build(compiler, dir string) (map[string][]byte, error) {
	out, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("asking %s for its version (apt install clang-19): %w", compiler, err)
	}
	version, _, _ := strings.Cut(string(out), "\n")
	m := kernels.Manifest{SchemaVersion: 1, Operation: "kernels", Compiler: strings.TrimSpace(version)}
	files := make(map[string][]byte)
	headers, err := kernels.Headers(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	for _, mod := range modules {
		source, err := os.ReadFile(filepath.Join(dir, mod.source))
		if err != nil {
			return nil, err
		}
		ptx, flags, err := compile(compiler, dir, mod)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(mod.source, ".cu") + "_" + strings.ReplaceAll(mod.arch, "_", "")
		entries := kernelNames(ptx)
		if len(entries) == 0 {
			return nil, fmt.Errorf("%s holds no kernel", mod.source)
		}
		files[name+".ptx"] = ptx
		m.Modules = append(m.Modules, kernels.ModuleInfo{Name: name, Source: mod.source, SourceSHA256: hash(source, headers), Flags: flags,
			Arch: mod.arch, SHA256: hash(ptx), Kernels: entries})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	files["manifest.json"] = append(text, '\n')
	return files, nil
}

func hash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func compile(compiler, dir string, m module) (ptx []byte, flags []string, err error) {
	// Without --cuda-feature clang takes the lowest PTX version of the architecture.
	flags = []string{"-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-O3", "-std=c++20", "-S", "-Wall", "-Wextra", "-Werror",
		"-Wno-unused-function", "--cuda-gpu-arch=" + m.arch, "--cuda-feature=+" + m.ptx}
	cmd := exec.Command(compiler, append(flags, m.source, "-o", "-")...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	ptx, err = cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("compiling %s: %w\n%s", m.source, err, stderr.String())
	}
	// A call that is left means that a function of libdevice or libm was used, which nobody provides.
	if regexp.MustCompile(`(?m)^\s*call|\.extern \.func`).Match(ptx) {
		return nil, nil, fmt.Errorf("%s calls a function that isn't in it", m.source)
	}
	return ptx, flags, nil
}

var entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

func kernelNames(ptx []byte) []string {
	var names []string
	for _, m := range entry.FindAllSubmatch(ptx, -1) {
		names = append(names, string(m[1]))
	}
	sort.Strings(names)
	return names
}
