package inspect

import (
	"slices"
	"strings"
	"testing"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/topology"
)

const testUUID = "00000000-1111-2222-3333-444444444444"

// healthy are the facts of a host with one H100 and a driver of CUDA 13.4, on which everything answers.
func healthy() *Facts {
	got := observe.Got[string]
	sm := query.SMResource{Count: 132, MinPartition: observe.Got("", uint32(8)), Alignment: observe.Got("", uint32(8))}
	symbols := make(map[string]bool)
	for name := range query.Introduced() {
		symbols[name] = true
	}
	f := &Facts{OS: "linux", UserID: 1000, Processes: Processes{ByPID: map[uint32]Process{}}}
	f.Kernel = Kernel{Source: Source{Status: observe.SupportedProven}, PIDNamespace: "host"}
	f.Container = Container{Source: Source{Status: observe.SupportedProven}, Kind: "none"}
	f.NVML = nvml.Report{Status: observe.SupportedProven}
	f.NVML.Devices = []nvml.Device{{Handle: observe.Got("nvmlDeviceGetHandleByIndex_v2", true), UUID: got("nvmlDeviceGetUUID", "GPU-"+testUUID), Name: got("nvmlDeviceGetName", "NVIDIA H100"),
		PCI: observe.Got("nvmlDeviceGetPciInfo_v3", nvml.PCI{BusID: "00000000:06:00.0"}), ComputeCapability: got("", "9.0"), ComputeMode: got("nvmlDeviceGetComputeMode", "default"),
		Virtualization: got("", "none"), Memory: observe.Got("nvmlDeviceGetMemoryInfo_v2", nvml.Memory{TotalBytes: 80 << 30}),
		MIG:       nvml.MIG{Current: observe.Got("nvmlDeviceGetMigMode", false), Pending: observe.Got("nvmlDeviceGetMigMode", false), Devices: []nvml.MIGDevice{}, Profiles: []nvml.Profile{}},
		Processes: nvml.Processes{Compute: observe.Got("nvmlDeviceGetComputeRunningProcesses_v3", []nvml.Process{})}}}
	f.CUDA = query.Report{Status: observe.SupportedProven, Answer: query.Answer{Symbols: symbols, DriverVersion: observe.Got("cuDriverGetVersion", 13040), DeviceCount: observe.Got("cuDeviceGetCount", 1),
		Library: &query.Library{Path: "/usr/lib/libcuda.so.1"}, Init: &query.Call{Name: "cuInit"},
		Devices: []query.Device{{UUID: got("cuDeviceGetUuid_v2", testUUID), PCI: got("", "0000:06:00.0"), ComputeCapability: got("", "9.0"), SMCount: observe.Got("", int64(132)),
			MemoryBytes: observe.Got("cuDeviceTotalMem_v2", uint64(79)<<30), Attributes: map[string]observe.Value[int64]{}, SM: observe.Got("cuDeviceGetDevResource(SM)", sm),
			WorkqueueConfig: observe.Got("cuDeviceGetDevResource(WORKQUEUE_CONFIG)", query.WorkqueueConfig{ConcurrencyLimit: 8})}}}}
	f.MPS = mps.Report{Status: observe.SupportedProven, Control: "/usr/bin/nvidia-cuda-mps-control", Version: observe.Got("-v", 13040), Partitions: observe.None[[]mps.Partition]("lspart", 0, "not_asked")}
	return f
}

// withDaemon adds an MPS daemon with its folder and what get_server_list said.
func withDaemon(f *Facts, d mps.Daemon, kind mps.Kind) {
	d.Pipe = observe.Got("environ", "/tmp/nvidia-mps")
	if d.PID == 0 {
		d.PID = 4100
	}
	d.State = "S"
	f.MPS.Daemons = append(f.MPS.Daemons, d)
	f.MPS.Folders = append(f.MPS.Folders, mps.Folder{Path: "/tmp/nvidia-mps", Exists: true, Socket: true, PIDState: mps.PIDLive, Owner: d.UID})
	f.MPS.Answers = append(f.MPS.Answers, mps.Answer{Input: "get_server_list", Folder: "/tmp/nvidia-mps", Kind: kind, Outcome: bounded.Exited})
}

func uid(n int) observe.Value[int] { return observe.Got("status", n) }

func TestVerdicts(t *testing.T) {
	device := func(f *Facts) *query.Device { return &f.CUDA.Devices[0] }
	for _, tc := range []struct {
		name      string
		change    func(*Facts)
		mechanism string
		want      observe.Status
		reason    string // a part of it
	}{
		{"healthy", func(*Facts) {}, GreenContexts, observe.SupportedDeclared, "132 SMs, partitions of at least 8"},
		{"healthy", func(*Facts) {}, Workqueues, observe.SupportedDeclared, "up to 8"},
		{"healthy", func(*Facts) {}, Heterogeneous, observe.SupportedDeclared, "cuDevSmResourceSplit"},
		{"healthy", func(*Facts) {}, MPSStatic, observe.SupportedDeclared, "13040"},
		{"healthy", func(*Facts) {}, MPSv3, observe.SupportedDeclared, "13040"},
		{"old driver", func(f *Facts) { f.CUDA.DriverVersion = observe.Got("", 12030) }, GreenContexts, observe.BlockedByRuntimeVersion, "12.3, 12.4 is needed"},
		{"exactly the floor", func(f *Facts) { f.CUDA.DriverVersion = observe.Got("", 12040) }, GreenContexts, observe.SupportedDeclared, ""},
		{"no version", func(f *Facts) { f.CUDA.DriverVersion = observe.None[int]("cuDriverGetVersion", 3, "x") }, GreenContexts, observe.Unknown, "could not be told"},
		{"symbols missing", func(f *Facts) { f.CUDA.Symbols["cuGreenCtxCreate"] = false }, GreenContexts, observe.Unknown, "lacks the calls"},
		{"split missing", func(f *Facts) { f.CUDA.Symbols["cuDevSmResourceSplit"] = false }, Heterogeneous, observe.Unknown, "lacks cuDevSmResourceSplit"},
		{"refused", func(f *Facts) {
			device(f).SM = observe.None[query.SMResource]("cuDeviceGetDevResource(SM)", 801, "CUDA_ERROR_NOT_SUPPORTED")
		}, GreenContexts, observe.Unsupported, "CUDA_ERROR_NOT_SUPPORTED"},
		{"refused in a guest", func(f *Facts) {
			device(f).SM = observe.None[query.SMResource]("", 801, "x")
			f.NVML.Devices[0].Virtualization = observe.Got("", "vgpu_guest")
		}, GreenContexts, observe.BlockedByEnvironment, "vGPU guest"},
		{"another error", func(f *Facts) { device(f).SM = observe.None[query.SMResource]("", 999, "CUDA_ERROR_UNKNOWN") }, GreenContexts, observe.Unknown, "could not be read"},
		{"interposed and answering", func(f *Facts) { f.CUDA.Library.Mapped = []string{"/x/libvgpu.so"} }, GreenContexts, observe.BlockedByEnvironment, "libvgpu.so"},
		{"too few SMs", func(f *Facts) { device(f).SM.Value.Count = 14 }, GreenContexts, observe.Unsupported, "14 SMs are too few"},
		{"limits of zero", func(f *Facts) {
			device(f).SM.Value.MinPartition, device(f).SM.Value.Alignment = observe.Got("", uint32(0)), observe.Got("", uint32(0))
		}, GreenContexts, observe.SupportedDeclared, "at least 8 in steps of 8"},
		{"workqueue refused", func(f *Facts) { device(f).WorkqueueConfig = observe.None[query.WorkqueueConfig]("", 801, "x") }, Workqueues, observe.Unsupported, ""},
		{"held exclusively", func(f *Facts) {
			f.NVML.Devices[0].ComputeMode = observe.Got("", "exclusive_process")
			f.NVML.Devices[0].Processes.Compute = observe.Got("", []nvml.Process{{PID: 5}})
		}, GreenContexts, observe.Busy, "exclusive"},
		{"held exclusively, MPS", func(f *Facts) {
			f.NVML.Devices[0].ComputeMode = observe.Got("", "exclusive_process")
			f.NVML.Devices[0].Processes.Compute = observe.Got("", []nvml.Process{{PID: 5}})
		}, MPSClassic, observe.Busy, "isn't MPS's"},
		{"excluded", func(f *Facts) {
			f.NVML.Devices, f.CUDA.Devices = nil, nil
			f.Driver.GPUs = []DriverGPU{{BusID: "0000:06:00.0", Excluded: true}}
		}, MIG, observe.BlockedByEnvironment, "leave this GPU alone"},
		{"no device node", func(f *Facts) {
			f.CUDA.Devices, f.NVML.Devices[0].Minor = nil, observe.Got("", uint32(3))
			f.Driver.Devices = []string{"nvidia0", "nvidiactl"}
		}, GreenContexts, observe.BlockedByEnvironment, "/dev/nvidia3 is missing"},
		{"not listed", func(f *Facts) { f.CUDA.Devices = nil }, GreenContexts, observe.Unknown, "doesn't list this GPU"},
		{"MIG device of another GPU", func(f *Facts) {
			f.CUDA.Devices = nil
			f.NVML.Devices[0].MIG.Current, f.NVML.Devices[0].MIG.Pending = observe.Got("", true), observe.Got("", true)
			f.NVML.Devices[0].MIG.Devices = []nvml.MIGDevice{{Name: observe.Got("", "NVIDIA H100 MIG 1g.10gb")}}
		}, GreenContexts, observe.Unknown, "it was another's"},
		{"nocuda", func(f *Facts) {
			f.Program.Libraries = "this program was built with the tag nocuda"
			f.CUDA = query.Report{Status: observe.BlockedByEnvironment, Reason: "nocuda"}
		}, GreenContexts, observe.BlockedByEnvironment, "nocuda"},
		{"permission of MIG", func(f *Facts) {
			f.NVML.Devices[0].MIG.Current = observe.None[bool]("nvmlDeviceGetMigMode", 4, "NVML_ERROR_NO_PERMISSION")
		}, MIG, observe.PermissionDenied, ""},

		{"another user's daemon", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1001), Mode: mps.Mode{Protocol: 2}}, mps.NoDaemon) }, MPSClassic, observe.PermissionDenied, "user 1001"},
		{"another user's daemon, asked by root", func(f *Facts) {
			f.UserID = 0
			withDaemon(f, mps.Daemon{UID: uid(1001), Mode: mps.Mode{Protocol: 2}}, mps.Empty)
		}, MPSClassic, observe.SupportedDeclared, "a daemon answers"},
		{"a folder that can't be entered", func(f *Facts) {
			f.MPS.Folders = []mps.Folder{{Path: "/tmp/nvidia-mps", Exists: true, Denied: true, Owner: uid(1001), PIDState: mps.PIDUnreadable}}
		}, MPSStatic, observe.PermissionDenied, "user 1001"},
		{"credentials", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1000)}, mps.Refused) }, MPSClassic, observe.PermissionDenied, "user 1000"},
		{"deaf", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1000)}, mps.NoDaemon) }, MPSClassic, observe.Unknown, "doesn't answer"},
		{"hung", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1000)}, mps.Hung) }, MPSStatic, observe.Hung, "did not answer"},
		{"static", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Static: true, Protocol: 2}}, mps.Empty)
		}, MPSClassic, observe.BlockedByMode, "static mode"},
		{"static", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Static: true, Protocol: 2}}, mps.Empty)
		}, MPSStatic, observe.SupportedDeclared, "were not asked for"},
		{"static", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Static: true, Protocol: 2}}, mps.Empty)
		}, MPSv3, observe.BlockedByMode, "protocol 2"},
		{"not static", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Protocol: 2}}, mps.Empty) }, MPSStatic, observe.BlockedByMode, "without -S"},
		{"for another GPU", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), VisibleDevices: observe.Got("environ", "GPU-ffffffff"), Mode: mps.Mode{Protocol: 2}}, mps.Empty)
		}, MPSStatic, observe.SupportedDeclared, "no daemon answers"},
		{"for this GPU by a prefix", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), VisibleDevices: observe.Got("environ", "GPU-ffffffff, GPU-00000000"), Mode: mps.Mode{Protocol: 2}}, mps.Empty)
		}, MPSStatic, observe.BlockedByMode, "without -S"},
		{"a client", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Protocol: 2}}, mps.Answered)
			f.NVML.Devices[0].Processes.MPS = observe.Got("", []nvml.Process{{PID: 7}})
		}, MPSClassic, observe.SupportedProven, "1 client"},
		{"partitions", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Static: true, Protocol: 2}}, mps.Empty)
			f.MPS.Partitions = observe.Got("lspart", []mps.Partition{{GPU: "GPU-00000000", FreeChunks: observe.Got("", 5)}, {GPU: "GPU-00000000", ID: "A/b"}, {GPU: "GPU-ffff", ID: "c"}})
		}, MPSStatic, observe.SupportedProven, "1 partition on this GPU, 5 chunks free"},
		{"lspart without a mode", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000)}, mps.Empty)
			f.MPS.Daemons = nil
		}, MPSStatic, observe.Unknown, "its mode can't be told"},
		{"older daemon than program", func(f *Facts) {
			withDaemon(f, mps.Daemon{UID: uid(1000), Mode: mps.Mode{Static: true}}, mps.Empty)
			f.MPS.Answers = append(f.MPS.Answers, mps.Answer{Input: "lspart", Folder: "/tmp/nvidia-mps", Kind: mps.UnknownCommand, Text: `Unknown command "lspart"`})
		}, MPSStatic, observe.BlockedByRuntimeVersion, "doesn't know lspart"},
		{"control of 13000", func(f *Facts) { f.MPS.Version = observe.Got("-v", 13000) }, MPSStatic, observe.BlockedByRuntimeVersion, "13000, 13010 is needed"},
		{"control without a version", func(f *Facts) { f.MPS.Version = observe.None[int]("-v", 0, "x") }, MPSStatic, observe.Unknown, ""},
		{"no control", func(f *Facts) { f.MPS = mps.Report{Status: observe.Unavailable, Reason: "x"} }, MPSClassic, observe.Unavailable, "not installed"},
		{"no control in a container", func(f *Facts) { f.MPS = mps.Report{Status: observe.Unavailable}; f.Container.Kind = "docker" }, MPSClassic, observe.Unavailable, "says nothing of the host"},
		{"Turing", func(f *Facts) { device(f).ComputeCapability = observe.Got("", "7.5") }, MPSStatic, observe.Unsupported, "7.5, 8.0 is needed"},
		{"compute mode of later", func(f *Facts) { f.NVML.Devices[0].ComputeMode = observe.Got("", "unknown (9)") }, TimeSlicing, observe.Unknown, "unknown (9)"},
	} {
		t.Run(tc.name+" "+tc.mechanism, func(t *testing.T) {
			f := healthy()
			tc.change(f)
			r := Judge(f)
			if len(r.GPUs) != 1 {
				t.Fatalf("%d GPUs", len(r.GPUs))
			}
			v := r.GPUs[0].Mechanisms[tc.mechanism]
			if v.Status != tc.want || !strings.Contains(v.Reason, tc.reason) {
				t.Errorf("%s: %s, want %s: %s", v.Status, v.Reason, tc.want, tc.reason)
			}
			for _, m := range Mechanisms() {
				x := r.GPUs[0].Mechanisms[m]
				supported := x.Status == observe.SupportedDeclared || x.Status == observe.SupportedProven
				if !x.Status.Valid() || supported == (x.Next != "") {
					t.Errorf("%s: %s, next %q", m, x.Status, x.Next)
				}
			}
		})
	}
}

func TestFindings(t *testing.T) {
	for _, tc := range []struct {
		id     string
		change func(*Facts)
	}{
		{"memory_under_reported", func(f *Facts) {
			f.CUDA.Devices[0].Attributes["integrated"] = observe.Got("", int64(1))
			f.NVML.Devices[0].Memory.Value.TotalBytes = 8 << 30
		}},
		{"runtime_newer_than_driver", func(f *Facts) { f.Runtime.Version = observe.Got("", 14000) }},
		{"mps_credentials_rejected", func(f *Facts) { withDaemon(f, mps.Daemon{UID: uid(1000)}, mps.Refused) }},
		{"environment_narrows", func(f *Facts) { f.Environment.Variables = map[string]string{"CUDA_VISIBLE_DEVICES": ""} }},
		{"deleted_executable", func(f *Facts) {
			f.NVML.Devices[0].Processes.Compute = observe.Got("", []nvml.Process{{PID: 7}})
			f.Processes.ByPID[7] = Process{Executable: observe.Got("/proc/PID/exe", "/opt/serve"), Deleted: true}
		}},
		{"repair_pending", func(f *Facts) { f.NVML.Devices[0].Health.Repair = observe.Got("", nvml.Repair{TPCPending: true}) }},
		{"stale_pid_file", func(f *Facts) { f.MPS.Folders = []mps.Folder{{Path: "/tmp/nvidia-mps", PIDState: mps.PIDDead}} }},
	} {
		f := healthy()
		if r := Judge(f); slices.ContainsFunc(r.Findings, func(x Finding) bool { return x.ID == tc.id }) {
			t.Errorf("%s on a healthy host", tc.id)
		}
		tc.change(f)
		if r := Judge(f); !slices.ContainsFunc(r.Findings, func(x Finding) bool { return x.ID == tc.id && x.Text != "" && x.Next != "" }) {
			t.Errorf("no %s: %+v", tc.id, r.Findings)
		}
	}
}

// Pids and other values of the moment are in a report only where they were asked for.
func TestVolatile(t *testing.T) {
	f := healthy()
	f.NVML.Devices[0].Processes.Compute = observe.Got("", []nvml.Process{{PID: 987654}})
	f.NVML.Devices[0].Power.PowerMW = observe.Got("", uint32(123321))
	withDaemon(f, mps.Daemon{PID: 456789, UID: uid(1000)}, mps.Answered)
	f.MPS.Answers[0].Text = "456789 answered 4567890"
	f.WallUS = map[string]int64{"nvml": 777111}
	numbers := []string{"987654", "123321", "777111"}
	var b strings.Builder
	if err := Judge(f).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, n := range append(numbers, "456789 ") {
		if strings.Contains(b.String(), n) {
			t.Errorf("%s is in a stable report", n)
		}
	}
	if !strings.Contains(b.String(), "PID answered 4567890") {
		t.Error("a number that is no pid was taken for one")
	}
	f.Volatile = true
	b.Reset()
	if err := Judge(f).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, n := range append(numbers, "456789 ") {
		if !strings.Contains(b.String(), n) {
			t.Errorf("%s is missing", n)
		}
	}
}

func TestDisagreements(t *testing.T) {
	f := healthy()
	f.CUDA.Devices[0].Name = observe.Got("", "Something else")
	f.CUDA.Devices[0].MemoryBytes = observe.Got("", uint64(20)<<30)
	f.SMI = SMI{Source: Source{Status: observe.SupportedProven}, Rows: []SMIRow{{UUID: observe.Got("", "GPU-"+testUUID), Driver: observe.Got("", "1.2"), MemoryMiB: observe.Got("", "81920"), ComputeMode: observe.Got("", "Exclusive_Process")}}}
	f.NVML.System = &nvml.System{DriverVersion: observe.Got("", "3.4"), CUDAVersion: observe.Got("", 13000)}
	var fields []string
	for _, d := range Judge(f).Disagreements {
		fields = append(fields, d.Field)
	}
	if want := []string{"driver_version", "cuda_version", "name", "compute_mode", "memory_bytes"}; !slices.Equal(fields, want) {
		t.Errorf("got %v, want %v", fields, want)
	}
}

// Roles follow the UUID, whatever the index.
func TestBindRoles(t *testing.T) {
	topo, err := topology.Parse([]byte("schema_version = 1\n[[hosts.h.gpus]]\nrole = \"fast\"\nuuid = \"GPU-" + testUUID + "\"\nmodel = \"H100\"\n" +
		"[[hosts.h.gpus]]\nrole = \"gone\"\nuuid = \"GPU-ffffffff-1111-2222-3333-444444444444\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []int{0, 5} {
		f := healthy()
		f.NVML.Devices[0].Index = index
		r := Judge(f)
		r.Bind(topo)
		if !slices.Equal(r.GPUs[0].Roles, []string{"fast"}) || r.Topology.Host != "h" || r.Topology.Roles[1].State != topology.Absent {
			t.Errorf("index %d: %v %+v", index, r.GPUs[0].Roles, r.Topology)
		}
		var b strings.Builder
		if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "role fast") || !strings.Contains(b.String(), "h/gone  absent") {
			t.Errorf("%v %s", err, b.String())
		}
	}
}
