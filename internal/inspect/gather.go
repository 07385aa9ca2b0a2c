package inspect

import (
	"context"
	"runtime"
	"slices"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/dl"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// answer stores what a source found; it runs in Gather's goroutine.
type answer func(*Facts)

// job is one source. late is what the facts say where it doesn't answer by the deadline.
type job struct {
	name string
	run  func(ctx context.Context, child time.Duration) answer
	late answer
}

// Gather asks every source at once and returns by the deadline. A source that hangs is left behind: what it says later goes
// nowhere.
func Gather(ctx context.Context, o Options) *Facts {
	o = o.withDefaults()
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	// A child that is given up needs bounded.Overrun to be reported, and a busy machine some time more.
	child := max(o.Timeout-bounded.Overrun-500*time.Millisecond, o.Timeout/2)

	f := &Facts{Root: o.Root, OS: o.OS, UserID: userID(), Volatile: o.Volatile, WallUS: make(map[string]int64),
		Program:     Program{Version: o.Version, OS: runtime.GOOS, Arch: runtime.GOARCH},
		Environment: environment(o.Env)}
	if err := dl.Available(); err != nil {
		f.Program.Libraries = err.Error()
	}
	t := tree{o.Root}
	// These are files of /proc and /sys, and others need them: which libraries there are and whose pids NVML reports.
	f.collect(ctx, start, []job{kernelJob(t, o)}, child)
	f.collect(ctx, start, jobs(t, o, f.Kernel), child)
	return f
}

// result is what came of a job.
type result struct {
	i      int
	answer answer
	wallUS int64
}

// collect runs jobs and stores what they say until ctx ends.
func (f *Facts) collect(ctx context.Context, start time.Time, jobs []job, child time.Duration) {
	waiting := make([]bool, len(jobs))
	for i := range waiting {
		waiting[i] = true
	}
	results := make(chan result, len(jobs))
	store := func(r result) {
		waiting[r.i] = false
		r.answer(f)
		f.WallUS[jobs[r.i].name] = r.wallUS
	}
	for i, j := range jobs {
		go func() {
			from := time.Now()
			a := j.run(ctx, max(child-time.Since(start), time.Millisecond))
			results <- result{i, a, time.Since(from).Microseconds()}
		}()
	}
	for range jobs {
		select {
		case r := <-results:
			store(r)
		case <-ctx.Done():
			// What has come by now counts.
			for len(results) > 0 {
				store(<-results)
			}
			for i, w := range waiting {
				if w {
					jobs[i].late(f)
				}
			}
			return
		}
	}
}

// source makes a job of a function and the place of its answer.
func source[T any](name string, place func(*Facts) *T, src func(*T) *Source, run func(ctx context.Context, child time.Duration) T) job {
	return job{name,
		func(ctx context.Context, child time.Duration) answer {
			v := run(ctx, child)
			return func(f *Facts) { *place(f) = v }
		},
		func(f *Facts) { src(place(f)).end(observe.Hung, "no answer by the deadline") },
	}
}

func kernelJob(t tree, o Options) job {
	return source("kernel", func(f *Facts) *Kernel { return &f.Kernel }, func(k *Kernel) *Source { return &k.Source },
		func(context.Context, time.Duration) Kernel { return kernel(t, o.OS) })
}

// pids are those that NVML reports, sorted.
func pids(devices []nvml.Device) []uint32 {
	var pids []uint32
	for _, d := range devices {
		for _, list := range []observe.Value[[]nvml.Process]{d.Processes.Compute, d.Processes.Graphics, d.Processes.MPS} {
			for _, p := range list.Or(nil) {
				pids = append(pids, p.PID)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// jobs are all sources but the kernel, which some of them need.
func jobs(t tree, o Options, k Kernel) []job {
	env := o.Env
	inContainer := func() bool { return container(t, o.OS, env).Kind != "none" }
	list := []job{
		source("container", func(f *Facts) *Container { return &f.Container }, func(s *Container) *Source { return &s.Source },
			func(context.Context, time.Duration) Container { return container(t, o.OS, env) }),
		source("wsl", func(f *Facts) *WSL { return &f.WSL }, func(s *WSL) *Source { return &s.Source },
			func(context.Context, time.Duration) WSL { return wsl(t, o.OS, k.Release) }),
		source("tegra", func(f *Facts) *Tegra { return &f.Tegra }, func(s *Tegra) *Source { return &s.Source },
			func(context.Context, time.Duration) Tegra { return tegra(t, o.OS) }),
		source("pci", func(f *Facts) *PCI { return &f.PCI }, func(s *PCI) *Source { return &s.Source },
			func(context.Context, time.Duration) PCI { return pci(t, o.OS) }),
		source("driver_files", func(f *Facts) *DriverFiles { return &f.Driver }, func(s *DriverFiles) *Source { return &s.Source },
			func(context.Context, time.Duration) DriverFiles { return driverFiles(t, o.OS) }),
		source("nvidia_smi", func(f *Facts) *SMI { return &f.SMI }, func(s *SMI) *Source { return &s.Source },
			func(ctx context.Context, d time.Duration) SMI { return smi(ctx, t, o.OS, env, d) }),
		source("docker", func(f *Facts) *Docker { return &f.Docker }, func(s *Docker) *Source { return &s.Source },
			func(ctx context.Context, d time.Duration) Docker { return docker(ctx, t, o.OS, env, inContainer, d) }),
		source("cdi", func(f *Facts) *CDI { return &f.CDI }, func(s *CDI) *Source { return &s.Source },
			func(context.Context, time.Duration) CDI { return cdi(t, o.OS) }),
		source("container_toolkit", func(f *Facts) *ContainerToolkit { return &f.Toolkit }, func(s *ContainerToolkit) *Source { return &s.Source },
			func(ctx context.Context, d time.Duration) ContainerToolkit {
				return containerToolkit(ctx, t, o.OS, env, d)
			}),
		source("nvcc", func(f *Facts) *NVCC { return &f.NVCC }, func(s *NVCC) *Source { return &s.Source },
			func(ctx context.Context, d time.Duration) NVCC { return nvcc(ctx, t, o.OS, env, d) }),
		source("frameworks", func(f *Facts) *Frameworks { return &f.Frameworks }, func(s *Frameworks) *Source { return &s.Source },
			func(context.Context, time.Duration) Frameworks { return frameworks(t, env) }),
	}
	return append(list, driverJobs(t, o, k)...)
}

// driverJobs are the sources that run the driver's libraries and programs.
func driverJobs(t tree, o Options, k Kernel) []job {
	if o.OS != "linux" {
		return []job{{"driver", func(context.Context, time.Duration) answer {
			return func(f *Facts) { f.blockDriver("the driver's libraries are opened on Linux only, this is " + o.OS) }
		}, func(*Facts) {}}}
	}
	const late = "no answer by the deadline"
	return []job{
		{"nvml", func(ctx context.Context, d time.Duration) answer {
			r := nvml.Inspect(ctx, nvml.Options{Root: o.Root, Env: o.Env, Timeout: d})
			p := processes(t, o.OS, k.PIDNamespace, pids(r.Devices))
			return func(f *Facts) { f.NVML, f.Processes = r, p }
		}, func(f *Facts) {
			f.NVML.Status, f.NVML.Reason = observe.Hung, late
			f.Processes.end(observe.Unknown, "NVML, which names them, did not answer")
		}},
		{"libcuda", func(ctx context.Context, d time.Duration) answer {
			r := query.Driver(ctx, query.Options{Root: o.Root, Env: o.Env, Timeout: d})
			return func(f *Facts) { f.CUDA = r }
		}, func(f *Facts) { f.CUDA.Status, f.CUDA.Reason = observe.Hung, late }},
		{"libcudart", func(ctx context.Context, d time.Duration) answer {
			r := query.Runtime(ctx, query.Options{Root: o.Root, Env: o.Env, Timeout: d})
			return func(f *Facts) { f.Runtime = r }
		}, func(f *Facts) { f.Runtime.Status, f.Runtime.Reason = observe.Hung, late }},
		{"mps_control", func(ctx context.Context, d time.Duration) answer {
			r := mps.Inspect(ctx, mps.Options{Root: o.Root, Env: o.Env, Timeout: d, Partitions: o.MPSPartitions})
			return func(f *Facts) { f.MPS = r }
		}, func(f *Facts) { f.MPS.Status, f.MPS.Reason = observe.Hung, late }},
	}
}

func (f *Facts) blockDriver(why string) {
	const blocked = observe.BlockedByEnvironment
	f.NVML.Status, f.NVML.Reason = blocked, why
	f.CUDA.Status, f.CUDA.Reason = blocked, why
	f.Runtime.Status, f.Runtime.Reason = blocked, why
	notLinux(&f.Processes.Source, f.OS)
	f.MPS.Status, f.MPS.Reason = blocked, "MPS exists on Linux and QNX, this is "+f.OS
}
