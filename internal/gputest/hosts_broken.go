package gputest

import "maps"

// broken are hosts on which something doesn't work.
func broken() []Host {
	mismatch := &SMI{Behaviour: SMIText, Exit: 18, Text: "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144"}
	plain := func(name, note string) Host {
		h := Host{Name: name, Note: note}
		h.base("6.8.0-60-generic", "Ubuntu", "24.04", 16300000)
		return h
	}
	hung := func(b SMIBehaviour) func(*Host) { return func(h *Host) { h.SMI.Behaviour = b } }
	fault := func(f ...Fault) func(*Host) { return func(h *Host) { h.Faults = f } }
	return []Host{
		plain("no-gpu", "no NVIDIA hardware and no driver"),
		plain("gpu-no-driver", "an NVIDIA GPU is on the bus and no driver is installed").with(func(h *Host) { h.pci(h200(0)) }),
		plain("amd-gpu", "a GPU of another maker").with(func(h *Host) {
			maps.Copy(h.Files, map[string]string{"/sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002\n", "/sys/bus/pci/devices/0000:03:00.0/class": "0x030000\n",
				"/sys/bus/pci/devices/0000:03:00.0/device": "0x744c\n"})
		}),
		native("driver-mismatch", "the libraries were upgraded and the module wasn't: nothing works until a reboot", r550, h100(80)).with(func(h *Host) {
			h.NVML[0].Init, h.CUDA[0].Init, h.SMI = 18, 803, mismatch
			h.Files["/sys/module/nvidia/version"] = "550.120\n"
			h.Files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 10:10:01 UTC 2024\n"
		}),
		native("driver-mismatch-cuda-works", "NVML reports a mismatch and CUDA works all the same", r550, h100(81)).with(func(h *Host) {
			h.NVML[0].Init, h.SMI = 18, mismatch
			h.Files["/sys/module/nvidia/version"] = "550.120\n"
		}),
		native("driver-not-loaded", "libraries without a module", r580, h100(82)).with(func(h *Host) {
			h.NVML[0].Init, h.CUDA[0].Init = 9, 100
			h.SMI = &SMI{Behaviour: SMIText, Exit: 9, Text: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n"}
			for _, f := range []string{"/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"} {
				delete(h.Files, f)
			}
			delete(h.Links, pciFolder(h.GPUs[0])+"/driver")
		}),
		native("stub-libcuda", "the toolkit's stub comes first on the loader's path", r580, h100(83)).with(func(h *Host) {
			h.CUDA = []CUDA{{Folder: "/usr/local/cuda/lib64/stubs", Version: 13000, Init: 34}, {Version: 13000, Hidden: true}}
		}),
		native("stub-libcuda-only", "an image with a toolkit and no driver: the stub is all there is", r580).with(func(h *Host) {
			h.CUDA = []CUDA{{Folder: "/usr/local/cuda/lib64/stubs", Version: 13000, Init: 34}}
			h.NVML, h.SMI, h.MPS = nil, nil, nil
			for _, f := range []string{"/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/dev/nvidiactl", "/dev/nvidia-uvm"} {
				delete(h.Files, f)
			}
		}),
		native("compat-on-geforce", "a forward-compatibility package on hardware that it doesn't support", r535, GPU{UUID: uuid(84), Name: "NVIDIA GeForce RTX 3090", Bus: "00000000:0A:00.0",
			CC: "8.6", SMs: 82, Memory: 25769803776, LimitMW: 350000}).with(func(h *Host) {
			h.CUDA = []CUDA{{Folder: "/usr/local/cuda/compat", Version: 13000, Init: 804}, {Version: 12020, Hidden: true}}
		}),
		native("compat-on-h100", "a forward-compatibility package that works: libcuda is newer than the module", r550, h100(85)).with(func(h *Host) {
			h.CUDA = []CUDA{{Folder: "/usr/local/cuda/compat", Version: 13000}, {Version: 12040, Hidden: true}}
		}),
		native("smi-uninterruptible", "nvidia-smi is in state D, as the parent of a vfork whose child doesn't exec", r580, h100(86)).with(hung(SMIUninterruptible)),
		native("smi-grandchild", "nvidia-smi ignores SIGTERM and a descendant keeps its output open", r580, h100(87)).with(hung(SMIGrandchild)),
		native("smi-garbage", "nvidia-smi prints something else", r580, h100(88)).with(func(h *Host) {
			h.SMI = &SMI{Behaviour: SMIText, Text: "GPU-, , ,\n\x01\x02,,,,,,,,,,,\n\"unterminated, 1, 2"}
		}),
		native("nvml-hung", "initialising NVML never returns", r580, h100(89)).with(fault(Fault{Symbol: "nvmlInitWithFlags", Action: Hang}), hung(SMIGrandchild)),
		native("nvml-hung-late", "NVML hangs on the second GPU's health", r580, h100(90), h100(91)).with(fault(Fault{Symbol: "nvmlDeviceGetEccMode", Call: 2, Action: Hang})),
		native("nvml-crash", "NVML crashes", r580, h100(92)).with(fault(Fault{Symbol: "nvmlDeviceGetCount_v2", Action: Crash})),
		native("cuinit-hung", "cuInit never returns", r580, h100(93)).with(fault(Fault{Symbol: "cuInit", Action: Hang})),
		native("cuinit-crash", "cuInit crashes", r580, h100(94)).with(fault(Fault{Symbol: "cuInit", Action: Crash})),
		native("fabric-not-ready", "an eight-GPU board whose fabric manager doesn't run: cuInit says that the system is not ready", r580, h100(95), h100(96)).with(func(h *Host) {
			h.CUDA[0].Init = 802
			for i := range h.GPUs {
				h.GPUs[i].Fabric = 2
			}
		}),
		native("gpu-lost", "one of three GPUs has fallen off the bus", r580, h100(97), func() GPU {
			g := h100(98)
			g.Lost = 15
			return g
		}(), h100(99)),
		native("gpu-missing", "a GPU is on the PCI bus and NVML doesn't list it", r580, h100(100), func() GPU {
			g := h100(101)
			g.NoNVML, g.NoCUDA = true, true
			return g
		}()),
		native("ecc-failing", "uncorrected errors, row remapping failed, a reset is pending, thermal slowdown", r580, func() GPU {
			g := h100(102)
			g.UncorrectedECC, g.RemapPending, g.RemapFailed, g.Throttle, g.TemperatureC = 7, true, true, 0x60, 91
			return g
		}()),
		native("prohibited", "compute mode prohibited", r580, func() GPU {
			g := h100(103)
			g.ComputeMode = 2
			return g
		}()).with(func(h *Host) { h.CUDA[0].Init = 0 }),
		native("nvml-no-permission", "device files are not this user's: NVML and libcuda are refused", r580, h100(104)).with(func(h *Host) {
			h.NVML[0].Init, h.CUDA[0].Init = 4, 304
			h.SMI = &SMI{Behaviour: SMIText, Exit: 4, Text: "Failed to initialize NVML: Insufficient Permissions"}
		}),
		native("noisy-libraries", "libraries print on stdout and stderr", r580, h100(105)).with(fault(
			Fault{Symbol: "cuInit", Action: Noise}, Fault{Symbol: "nvmlDeviceGetName", Action: Noise})),
		native("lying-libraries", "calls succeed and fill nothing", r580, h100(106)).with(fault(
			Fault{Symbol: "cuDeviceGetDevResource", Action: Lie}, Fault{Symbol: "nvmlDeviceGetMigMode", Action: Lie})),
	}
}
