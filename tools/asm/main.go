// Command asm writes the assembly of internal/backend/cpu: the same kernels for AVX2 with FMA and F16C, and for AVX-512,
// and the matrix product for AMX.
//
//	go run .           # in this folder, which is a module of its own, so that the product does not depend on avo
//	go run . -check    # writes nothing, fails where what is checked in differs
//
// The output is a function of the sources alone.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	flags := flag.NewFlagSet("asm", flag.ExitOnError) // avo has filled the default one with its own
	out := flags.String("out", "../../internal/backend/cpu", "folder of the files")
	check := flags.Bool("check", false, "compare the files with what would be written, byte for byte, and write nothing")
	_ = flags.Parse(os.Args[1:])
	if flags.NArg() > 0 {
		flags.Usage()
		os.Exit(2)
	}
	files, err := generate()
	if err == nil && *check {
		err = compare(files, *out)
	} else if err == nil {
		err = write(files, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "asm:", err)
		os.Exit(1)
	}
}

func write(files map[string][]byte, dir string) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// compare fails unless dir has exactly these files: none that differs, and no other assembly.
func compare(files map[string][]byte, dir string) error {
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s differs from what is generated: run `go run .` in tools/asm", filepath.Join(dir, name))
		}
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.s"))
	if err != nil {
		return err
	}
	for _, path := range all {
		if files[filepath.Base(path)] == nil {
			return fmt.Errorf("%s is not generated", path)
		}
	}
	return nil
}

// generate returns the contents of every generated file, by name.
func generate() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, g := range []*gen{{isa: "AVX2", lanes: 8}, {isa: "AVX512", lanes: 16}, {isa: "AMX", lanes: 16}} {
		if err := g.file(files); err != nil {
			return nil, fmt.Errorf("%s: %w", g.isa, err)
		}
	}
	return files, nil
}

// gen builds one instruction set's file. Vectors are lanes float32 wide.
type gen struct {
	*build.Context
	isa   string
	lanes int

	label  int
	expMem expConst
	iota   operand.Mem

	nibbleTable, signedTable, pairTable, rowTable operand.Mem
	columnTable                                   [2]operand.Mem
}

func (g *gen) file(files map[string][]byte) error {
	g.Context = build.NewContext()
	g.ConstraintExpr("amd64")
	g.kernels()
	f, err := g.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(f); err != nil {
		name := ""
		for _, fn := range f.Functions() { // avo does not say which one it failed at: the last that it looked at
			if fn.Allocation != nil {
				name = fn.Name
			}
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, fn := range f.Functions() {
		for _, isa := range fn.ISA {
			if g.lanes == 8 && strings.HasPrefix(isa, "AVX512") {
				return fmt.Errorf("%s needs %s", fn.Name, isa)
			}
		}
	}
	cfg := printer.Config{Name: "tools/asm", Pkg: "cpu"}
	base := strings.ToLower(g.isa) + "_amd64"
	asm, err := printer.NewGoAsm(cfg).Print(f)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(f)
	if err != nil {
		return err
	}
	if stubs, err = format.Source(stubs); err != nil {
		return err
	}
	files[base+".s"], files[base+".go"] = asm, stubs
	return nil
}

func (g *gen) kernels() {
	if g.isa == "AMX" {
		g.amx()
		return
	}
	if g.lanes == 8 {
		g.pause()
	}
	g.expData()
	if g.lanes == 16 {
		g.iotaData()
	}
	for _, f := range g.formats() {
		if f.name != "F32" {
			g.expand(f)
		}
		g.gemv(f)
		if f.name != "F32" {
			g.few(f)
		}
	}
	if g.lanes == 8 {
		g.moreFormats()
		g.rotate()
	}
	g.dot()
	g.tile()
	g.wide()
	g.softmax()
	g.swiglu()
	g.norm()
	g.blend()
}

// text starts a function; name gets the instruction set's suffix.
func (g *gen) text(name, signature, doc string) {
	g.Function(name + g.isa)
	g.Attributes(attr.NOSPLIT)
	g.SignatureExpr(signature)
	g.Doc(name + g.isa + " " + doc)
	g.Pragma("noescape")
}

// fresh makes a label that is used once.
func (g *gen) fresh(name string) string {
	g.label++
	return fmt.Sprintf("%s%d", name, g.label)
}

func (g *gen) arg(name string) reg.GPVirtual {
	r := g.GP64()
	g.Load(g.Param(name), r)
	return r
}

// vec is a new vector register.
func (g *gen) vec() reg.VecVirtual {
	if g.lanes == 16 {
		return g.ZMM()
	}
	return g.YMM()
}

// bytes is a vector's size.
func (g *gen) bytes() int { return 4 * g.lanes }

func (g *gen) zero(v reg.VecVirtual) {
	g.VXORPS(v, v, v)
}

// splat is a vector of one constant.
func (g *gen) splat(bits uint32) reg.VecVirtual {
	v := g.vec()
	r := g.GP32()
	g.MOVL(operand.U32(bits), r)
	g.VMOVD(r, v.AsX())
	g.VPBROADCASTD(v.AsX(), v)
	return v
}

// at is base + scale*index + disp; a nil index is none.
func at(base, index reg.Register, scale uint8, disp int) operand.Mem {
	m := operand.Mem{Base: base, Disp: disp}
	if index != nil {
		m.Index, m.Scale = index, scale
	}
	return m
}

// pause is the processor's hint that a loop waits.
func (g *gen) pause() {
	g.Function("pause")
	g.Attributes(attr.NOSPLIT)
	g.SignatureExpr("func()")
	g.Doc("pause is one turn of a waiting loop: some tens of cycles that leave the core to others.")
	g.PAUSE()
	g.PAUSE()
	g.RET()
}
