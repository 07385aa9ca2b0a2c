package cuda

import (
	"fmt"
	"strings"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
)

// kernelTable finds kernels by name in the modules that suit the GPU.
type kernelTable struct {
	loaded    []kernels.ModuleInfo
	modules   map[string]driver.Module // kernels, to where they are
	functions map[string]driver.Function
	shared    map[driver.Function]uint32 // dynamic shared memory that was allowed
	suffix    string
}

// loadKernels makes the driver compile the modules for its GPU; it keeps the results in its own cache on disk.
func (g *gpu) loadKernels() error {
	t := &g.kernels
	t.modules, t.functions, t.suffix = map[string]driver.Module{}, map[string]driver.Function{}, "_sm80"
	t.shared = map[driver.Function]uint32{}
	if g.sm == 90 {
		t.suffix = "_sm90a"
	}
	products, prompts := "mma_sm80", "attend_many_sm80"
	if g.sm == 90 {
		products, prompts = "wgmma_sm90a", "attend_wgmma_sm90a"
	}
	for _, name := range []string{"engine" + t.suffix, "sample" + t.suffix, "skinny" + t.suffix, products, "attend_one" + t.suffix, prompts} {
		if err := t.load(g.d, name); err != nil {
			return err
		}
	}
	return g.tellUnproven(t.loaded)
}

// tellUnproven logs which of some loaded modules have never passed their tests on a GPU.
func (g *gpu) tellUnproven(loaded []kernels.ModuleInfo) error {
	reasons, err := kernels.Unproven()
	if err != nil {
		return err
	}
	var names []string
	for _, m := range loaded {
		if _, ok := reasons[m.Name]; ok {
			names = append(names, m.Name)
		}
	}
	if len(names) > 0 {
		g.opt.Log.Warn("kernels of this build have not passed their tests on a GPU", "modules", strings.Join(names, " "))
	}
	return nil
}

func (t *kernelTable) load(d *driver.Driver, name string) error {
	ptx, info, err := kernels.Module(name)
	if err != nil {
		return err
	}
	m, err := d.LoadModule(ptx)
	if err != nil {
		return fmt.Errorf("kernels %s: %w", name, err)
	}
	t.loaded = append(t.loaded, info)
	for _, k := range info.Kernels {
		t.modules[k] = m
	}
	return nil
}

func (t *kernelTable) has(name string) bool {
	_, ok := t.modules[name]
	return ok
}

func (t *kernelTable) function(d *driver.Driver, name string) (driver.Function, error) {
	if f, ok := t.functions[name]; ok {
		return f, nil
	}
	m, ok := t.modules[name]
	if !ok {
		return 0, fmt.Errorf("no kernel %s is loaded", name)
	}
	f, err := d.Function(m, name)
	if err != nil {
		return 0, err
	}
	t.functions[name] = f
	return f, nil
}

// allow lets a kernel have dynamic shared memory beyond 48 KiB.
func (t *kernelTable) allow(d *driver.Driver, f driver.Function, bytes uint32) error {
	if bytes <= 48<<10 || bytes <= t.shared[f] {
		return nil
	}
	if err := d.AllowShared(f, int(bytes)); err != nil {
		return fmt.Errorf("%d bytes of shared memory: %w", bytes, err)
	}
	t.shared[f] = bytes
	return nil
}
