package gputest

import "strings"

// seedGPUs are the two GPUs of the host in the document that this project started from.
func seedGPUs() []GPU {
	return []GPU{
		{UUID: uuid(40), Name: "NVIDIA GeForce RTX 5090", Bus: "00000000:01:00.0", CC: "12.0", SMs: 170, Memory: 34190917632, Display: true, LimitMW: 575000,
			Virtualization: 0, Codes: wslCodes()},
		{UUID: uuid(41), Name: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", Bus: "00000000:02:00.0", CC: "12.0", SMs: 188, Memory: 102641958912,
			ECC: true, LimitMW: 300000, Codes: wslCodes()},
	}
}

// wslCodes are what NVML doesn't answer through WSL2's driver model.
func wslCodes() map[string]int {
	return map[string]int{"nvmlDeviceGetMinorNumber": 3, "nvmlDeviceGetMigMode": 3, "nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetMPSComputeRunningProcesses_v3": 3}
}

// wsl2 is Windows' GPU host seen from a Linux distribution: libraries are shims in /usr/lib/wsl/lib, no kernel module is there.
func wsl2(name, note string, gpus []GPU) Host {
	h := Host{
		Name: name, Note: note,
		CUDA: []CUDA{{Folder: "/usr/lib/wsl/lib", Hidden: true, Version: 13030}},
		NVML: []NVML{{Folder: "/usr/lib/wsl/lib", Hidden: true, Driver: "610.62", CUDA: 13030}},
		SMI:  &SMI{Folder: "/usr/lib/wsl/lib"},
		GPUs: gpus,
		Files: map[string]string{
			"/dev/dxg":                            "",
			"/usr/lib/wsl/lib/libdxcore.so":       "",
			"/proc/sys/fs/binfmt_misc/WSLInterop": "enabled\ninterpreter /init\nflags: PF\n",
		},
	}
	h.base("5.15.167.4-microsoft-standard-WSL2", "Ubuntu", "24.04", 65778404)
	return h
}

func workstation() []Host {
	rtx4090 := GPU{UUID: uuid(42), Name: "NVIDIA GeForce RTX 4090", Bus: "00000000:01:00.0", CC: "8.9", SMs: 128, Memory: 25757220864, Used: 900 << 20,
		Display: true, LimitMW: 450000, Graphics: []Process{{PID: 2211, Used: 500 << 20}, {PID: 2402, Used: 200 << 20}},
		Compute: []Process{{PID: 9001, Used: 100 << 20}}}
	return []Host{
		wsl2("rtx5090-wsl2", "the seed's Primary Node: RTX 5090 and RTX PRO 6000 Max-Q, Windows driver 610.62, Runtime 13.2", seedGPUs()).with(func(h *Host) {
			h.Runtime = []Runtime{{Version: 13020, Folder: "/usr/local/cuda-13.2/lib64", Hidden: true}}
			h.Files["/usr/local/cuda-12.8/version.json"] = `{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}, "nvcc": {"name": "NVCC", "version": "12.8.93"}}`
			h.Docker = dockerEngine("29.5.3", "Docker Desktop", "nvidia")
		}),
		wsl2("rtx5090-docker-desktop", "the distribution docker-desktop of the same host: /dev/dxg and libcuda, no nvidia-smi on PATH", seedGPUs()).with(func(h *Host) {
			h.SMI = nil
			h.Files["/etc/os-release"] = "ID=docker-desktop\nNAME=\"Docker Desktop\"\nPRETTY_NAME=\"Docker Desktop\"\n"
		}),
		wsl2("wsl2-with-linux-driver", "a Linux driver's libcuda was installed into WSL2 beside the shim: alone it finds no device", seedGPUs()[:1]).with(func(h *Host) {
			h.CUDA = append(h.CUDA, CUDA{Version: 12040, Init: 100})
		}),
		native("rtx5090-linux", "the same card on Linux", r580, func() GPU {
			g := seedGPUs()[0]
			g.Codes, g.UUID = nil, uuid(43)
			return g
		}()),
		native("rtx-pro-6000", "a GeForce-sized Blackwell that is capable of MIG", r610, GPU{UUID: uuid(44), Name: "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
			Bus: "00000000:C1:00.0", CC: "12.0", SMs: 188, Memory: 102641958912, ECC: true, LimitMW: 600000,
			MIG: &MIG{Max: 4, Profiles: profiles(pro6000Profiles)}}),
		native("rtx4090-desktop", "a display is attached, the X server and a browser hold the GPU", r580, rtx4090).with(func(h *Host) {
			h.process(2211, "/usr/lib/xorg/Xorg", "/usr/lib/xorg/Xorg", "vt2")
			h.process(2402, "/opt/google/chrome/chrome", "/opt/google/chrome/chrome", "--type=gpu-process")
			h.process(9001, "/usr/bin/python3.12", "python3", "train.py")
		}),
		native("gtx1080ti-r580", "Pascal: minimum 1", r580, GPU{UUID: uuid(45), Name: "NVIDIA GeForce GTX 1080 Ti", Bus: "00000000:01:00.0", CC: "6.1", SMs: 28,
			Memory: 11811160064, Cores: 3584, LimitMW: 250000, Display: true}),
		native("gtx770-smi-nulls", "nvidia-smi prints most fields as not supported, in old words", r470, GPU{UUID: uuid(46), Name: "GeForce GTX 770", Bus: "00000000:01:00.0",
			CC: "3.0", SMs: 8, Memory: 2147483648, Cores: 1536, Codes: map[string]int{"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3},
			SMI: map[string]string{"memory.total": "[Not Supported]", "memory.free": "[Not Supported]", "memory.used": "[Not Supported]", "compute_mode": "[Not Supported]",
				"power.draw": "[Not Supported]", "fan.speed": "[Unknown Error]", "mig.mode.current": "N/A", "mig.mode.pending": "N/A", "display_active": "[N/A]"}}),
		native("laptop-a5000-reset", "an RTX A5000 laptop GPU requires a reset; a second GPU is well", r570,
			GPU{UUID: uuid(47), Name: "NVIDIA RTX A5000 Laptop GPU", Bus: "00000000:01:00.0", CC: "8.6", SMs: 48, Memory: 17179869184, Lost: 16},
			GPU{UUID: uuid(48), Name: "NVIDIA RTX A2000", Bus: "00000000:02:00.0", CC: "8.6", SMs: 26, Memory: 12884901888, LimitMW: 70000}),
		native("comma-in-name", "a GPU's name holds a comma", r580, GPU{UUID: uuid(49), Name: "NVIDIA GeForce RTX 3060, Lite Hash Rate", Bus: "00000000:01:00.0", CC: "8.6",
			SMs: 28, Memory: 12884901888, LimitMW: 170000}),
		native("rtx4060-small-limits", "a card that reports limits below the table: minimum 2", r580, GPU{UUID: uuid(50), Name: "NVIDIA GeForce RTX 4060", Bus: "00000000:01:00.0",
			CC: "8.9", SMs: 24, Memory: 8585740288, MinPartition: 2, Alignment: 2, LimitMW: 115000}),
	}
}

// embedded are systems whose memory CPU and GPU share.
func embedded() []Host {
	orinCodes := map[string]int{"nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetMigMode": 3,
		"nvmlDeviceGetPciInfo_v3": 3, "nvmlDeviceGetTemperature": 3, "nvmlDeviceGetComputeMode": 3, "nvmlDeviceGetNumGpuCores": 3}
	tegra := func(name, note, cc, model string, version, sms int, memory uint64, tegraRelease string) Host {
		h := Host{Name: name, Note: note, GOARCH: "arm64",
			CUDA: []CUDA{{Folder: "/usr/lib/aarch64-linux-gnu/tegra", Hidden: true, Version: version}},
			GPUs: []GPU{{UUID: uuid(600 + sms), Name: model, Bus: "00000000:00:00.0", CC: cc, SMs: sms, Memory: memory, Integrated: true, Codes: orinCodes,
				SMI: map[string]string{"memory.total": "[N/A]", "memory.used": "[N/A]", "memory.free": "[N/A]", "pci.bus_id": "[N/A]", "compute_mode": "[N/A]", "power.draw": "[N/A]"}}},
		}
		h.base("5.15.148-tegra", "Ubuntu", "22.04", int(memory>>10))
		h.Files["/etc/nv_tegra_release"] = tegraRelease
		h.Files["/proc/device-tree/compatible"] = "nvidia,p3737-0000+p3701-0005\x00nvidia,p3701-0005\x00nvidia,tegra234\x00"
		h.Files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Orin Developer Kit\x00"
		h.Files["/dev/nvhost-gpu"] = ""
		return h
	}
	return []Host{
		native("gb10-spark", "DGX Spark: memory is the host's and NVML reports none; PCI domain 0xF", r580, GPU{UUID: uuid(51), Name: "NVIDIA GB10", Bus: "0000000F:01:00.0",
			CC: "12.1", SMs: 48, Memory: 128460800000, Integrated: true, Addressing: 2,
			Codes: map[string]int{"nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetEnforcedPowerLimit": 3},
			SMI:   map[string]string{"memory.total": "[N/A]", "memory.used": "[N/A]", "memory.free": "[N/A]", "power.limit": "[N/A]"}}).with(func(h *Host) {
			h.GOARCH = "arm64"
			h.base("6.14.0-1013-nvidia", "Ubuntu", "24.04", 125450000)
			for path, text := range h.Files {
				h.Files[path] = strings.ReplaceAll(text, "x86_64", "aarch64")
			}
		}),
		tegra("orin-jetpack6", "Jetson with JetPack 6: nvidia-smi exists and prints little", "8.7", "Orin", 12060, 16, 65890271232,
			"# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n").with(func(h *Host) {
			h.NVML = []NVML{{Folder: "/usr/lib/aarch64-linux-gnu/nvidia", Hidden: true, Driver: "540.4.0", CUDA: 12060}}
			h.SMI = &SMI{}
			h.GPUs[0].SMI["name"] = "Orin (nvgpu)"
		}),
		tegra("orin-jetpack5", "Jetson with JetPack 5: neither nvidia-smi nor NVML", "8.7", "Orin", 11040, 14, 32212254720,
			"# R35 (release), REVISION: 5.0, GCID: 35550185, BOARD: t186ref, EABI: aarch64, DATE: Tue Feb 20 04:46:31 UTC 2024\n"),
		tegra("thor-jetpack7", "Jetson Thor: CUDA 13.0, compute capability 11.0", "11.0", "NVIDIA Thor", 13000, 20, 131882934272,
			"# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64, DATE: Fri Aug 22 00:55:42 UTC 2025\n").with(func(h *Host) {
			h.NVML = []NVML{{Folder: "/usr/lib/aarch64-linux-gnu/nvidia", Hidden: true, Driver: "580.00", CUDA: 13000}}
			h.SMI = &SMI{}
			h.MPS = &MPS{Version: 13000}
			h.Files["/proc/device-tree/compatible"] = "nvidia,p3971-0089+p3834-0008\x00nvidia,tegra264\x00"
			h.Files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Thor Developer Kit\x00"
		}),
	}
}
