package cuda

import (
	"fmt"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
)

// kernelTable finds kernels by name in the modules that suit the GPU.
type kernelTable struct {
	modules   map[string]driver.Module // kernels, to where they are
	functions map[string]driver.Function
	suffix    string
}

// loadKernels makes the driver compile the modules for its GPU; it keeps the results in its own cache on disk.
func (g *gpu) loadKernels() error {
	t := &g.kernels
	t.modules, t.functions, t.suffix = map[string]driver.Module{}, map[string]driver.Function{}, "_sm80"
	if g.sm == 90 {
		t.suffix = "_sm90a"
	}
	for _, name := range []string{"engine", "sample"} {
		if err := t.load(g.d, name+t.suffix); err != nil {
			return err
		}
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
	for _, k := range info.Kernels {
		t.modules[k] = m
	}
	return nil
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
