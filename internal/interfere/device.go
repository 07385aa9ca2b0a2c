package interfere

import (
	"fmt"
	"slices"

	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
	"cotenant/internal/kernels"
	"cotenant/internal/partition"
)

// device is what a worker has made on its GPU. All of it belongs to the worker's first thread, but for running jobs.
type device struct {
	d          *cuda.Driver
	dev        cuda.Device
	context    cuda.Context
	sms        int64
	capability int64
	least      int // stream priorities
	greatest   int
	functions  map[string]cuda.Function // by module and name
	modules    map[string]cuda.Module
	loaded     []record.Module
	data       map[string]*data // by workload
	lanes      map[string]pair  // by mechanism
	jobs       map[jobKey]*job
	plan       *record.Plan
}

// lane is where a job runs: so many SMs, a stream, and one more for jobs that do two things at once.
type lane struct {
	sms          int64
	stream, side cuda.Stream
}

// pair are the lanes of a mechanism.
type pair struct{ victim, aggressor lane }

type jobKey struct {
	workload string
	stream   cuda.Stream
}

// openDevice initialises the driver and finds the GPU; the primary context is retained and current.
func openDevice(d *cuda.Driver, uuid string) (*device, error) {
	x := &device{d: d, functions: make(map[string]cuda.Function), modules: make(map[string]cuda.Module), data: make(map[string]*data),
		lanes: make(map[string]pair), jobs: make(map[jobKey]*job)}
	var err error
	if x.dev, _, err = d.Find(uuid); err != nil {
		return nil, err
	}
	var numbers [3]int
	for i, attribute := range []int{cuda.AttributeSMCount, cuda.AttributeMajor, cuda.AttributeMinor} {
		if numbers[i], err = d.Attribute(x.dev, attribute); err != nil {
			return nil, err
		}
	}
	x.sms, x.capability = int64(numbers[0]), int64(10*numbers[1]+numbers[2])
	if x.context, err = d.RetainPrimary(x.dev); err != nil {
		return nil, err
	}
	if err = d.SetCurrent(x.context); err != nil {
		return nil, err
	}
	x.least, x.greatest, err = d.PriorityRange()
	return x, err
}

// function loads a kernel's module where it isn't loaded yet.
func (x *device) function(module, name string) (cuda.Function, error) {
	if f, ok := x.functions[module+" "+name]; ok {
		return f, nil
	}
	m, ok := x.modules[module]
	if !ok {
		ptx, info, err := kernels.Module(module)
		if err != nil {
			return 0, err
		}
		if m, err = x.d.LoadModule(ptx); err != nil {
			return 0, fmt.Errorf("loading kernels %s: %w", module, err)
		}
		x.modules[module] = m
		x.loaded = append(x.loaded, record.Module{Name: info.Name, SHA256: info.SHA256})
	}
	f, err := x.d.Function(m, name)
	if err == nil {
		x.functions[module+" "+name] = f
	}
	return f, err
}

func (x *device) kernel(name string) (cuda.Function, error) {
	return x.function(kernels.InterfereModule, name)
}

// laneOn makes a lane of plain streams.
func (x *device) laneOn(priority int) (l lane, err error) {
	l.sms = x.sms
	if l.stream, err = x.d.CreateStream(priority); err != nil {
		return l, err
	}
	l.side, err = x.d.CreateStream(priority)
	return l, err
}

// quiet takes a partition's steps without a journal: they are made once, in a worker whose beginning is in it.
type quiet struct{}

func (quiet) Begin(string, int) error { return nil }
func (quiet) End(string, int, error)  {}

// mechanism makes the lanes of a mechanism within this process and says what the driver granted. A mechanism between processes is one
// lane on either side.
func (x *device) mechanism(m record.Mechanism) record.Made {
	made := record.Made{Mechanism: m.ID, VictimSMs: x.sms, AggressorSMs: x.sms}
	p, err := x.pairOf(m)
	if err != nil {
		made.Failure, made.VictimSMs, made.AggressorSMs = err.Error(), 0, 0
		return made
	}
	x.lanes[m.ID] = p
	if m.Kind == record.Green {
		made.VictimSMs, made.AggressorSMs = p.victim.sms, p.aggressor.sms
	}
	return made
}

func (x *device) pairOf(m record.Mechanism) (p pair, err error) {
	switch m.Kind {
	case record.Green:
		return x.green(int(m.VictimSMs))
	case record.Priority:
		if x.least == x.greatest {
			return p, fmt.Errorf("the device has one stream priority")
		}
		if p.victim, err = x.laneOn(x.greatest); err == nil {
			p.aggressor, err = x.laneOn(x.least)
		}
		return p, err
	case record.Streams:
		if p.victim, err = x.laneOn(x.least); err == nil {
			p.aggressor, err = x.laneOn(x.least)
		}
		return p, err
	}
	p.victim, err = x.laneOn(x.least)
	p.aggressor = p.victim
	return p, err
}

// green makes two Green Contexts, which live as long as the process.
func (x *device) green(sms int) (p pair, err error) {
	if missing := x.d.Missing(cuda.GreenSymbols...); len(missing) > 0 {
		return p, &cuda.MissingError{Symbol: missing[0]}
	}
	version, err := x.d.Version()
	if err != nil {
		return p, err
	}
	whole, err := x.d.DeviceResource(x.dev)
	if err != nil {
		return p, err
	}
	limits, _ := partition.LimitsOf(&whole, version, int(x.capability)/10)
	set, err := partition.Create(x.d, x.dev, partition.Plan{SMs: []int{sms, partition.Rest}}, limits, quiet{})
	if err != nil {
		set.Close()
		return p, err
	}
	for i, to := range []*lane{&p.victim, &p.aggressor} {
		part := set.Partitions[i]
		to.sms, to.stream = int64(part.Resource.SMs()), part.Stream
		if to.side, err = x.d.CreateGreenStream(part.Green, 0); err != nil {
			return p, err
		}
	}
	return p, nil
}

// workload finds one of the plan's.
func (x *device) workload(id string) (record.Workload, error) {
	for _, w := range slices.Concat(x.plan.Victims, x.plan.Aggressors) {
		if w.ID == id {
			return w, nil
		}
	}
	return record.Workload{}, fmt.Errorf("no workload %q in the plan", id)
}
