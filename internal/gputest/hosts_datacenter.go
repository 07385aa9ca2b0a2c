package gputest

// datacenter are servers with data-centre GPUs, in good order.
func datacenter() []Host {
	eight := func(make func(int) GPU, base int) []GPU {
		var gpus []GPU
		for i := range 8 {
			gpus = append(gpus, make(base+i))
		}
		return gpus
	}
	return []Host{
		native("h200-r580", "the machine of shared measurements: no MPS daemon, control binary 13000", r580, h200(1)),
		native("h200-r590", "first driver with heterogeneous splits, workqueues and MPS static partitioning", r590, h200(2)),
		native("h200-r615", "locality domains and MPS protocol 3", r615, h200(3)),
		native("h100-r550", "first driver with Green Contexts; limits are not reported before CUDA 13.0", r550, h100(4)),
		native("h100-r555", "first driver with cuGreenCtxStreamCreate", r555, h100(5)),
		native("h100-r535", "driver below the floor of Green Contexts", r535, h100(6)),
		native("h100-x8", "eight GPUs behind a fabric manager that is ready", r580, eight(h100, 10)...),
		native("h100-mig-mixed", "MIG on, with instances of three profiles and a hole in the slots", r580, migMixed(20)),
		native("h100-mig-pending", "MIG was switched on and awaits a reset", r580, func() GPU {
			g := h100(21)
			g.MIG.Pending = true
			return g
		}()),
		native("h100-mig-empty", "MIG on without an instance: CUDA finds no device", r580, func() GPU {
			g := h100(22)
			g.MIG.Current, g.MIG.Pending = true, true
			return g
		}()).with(func(h *Host) { h.CUDA[0].Init = 100 }),
		native("a100-r450-mig", "driver before R470: MIG UUIDs of the old form MIG-GPU-<uuid>/<GI>/<CI>", r450, a100MIG(23, true)),
		native("a100-r570-mig", "MIG on with seven small instances", r570, a100MIG(24, false)),
		native("a100-r525", "CUDA 12.0: NVML has versions 3 of the process calls, libcuda no Green Contexts", r525, a100(25)),
		native("a100-r580", "Ampere: minimum 4, alignment 2", r580, a100(26)),
		native("v100-r580", "Volta: minimum 2, alignment 2, no MIG, no MPS static partitioning", r580, GPU{UUID: uuid(27), Name: "Tesla V100-SXM2-32GB",
			Bus: "00000000:15:00.0", CC: "7.0", SMs: 80, Memory: 34359738368, Cores: 5120, ECC: true, LimitMW: 300000}),
		native("t4-r580", "Turing", r580, GPU{UUID: uuid(28), Name: "Tesla T4", Bus: "00000000:00:1E.0", CC: "7.5", SMs: 40, Memory: 16106127360,
			Cores: 2560, ECC: true, LimitMW: 70000, Virtualization: 1}),
		native("k80-r470", "Kepler on its last driver: NVML without MIG answers, CUDA 11.4", r470, GPU{UUID: uuid(29), Name: "Tesla K80", Bus: "00000000:00:1E.0",
			CC: "3.7", SMs: 13, Memory: 11996954624, Cores: 2496, ECC: true, Codes: map[string]int{"nvmlDeviceGetRemappedRows": 3}}),
		native("l4-r580", "L4, passed through to a virtual machine", r580, GPU{UUID: uuid(30), Name: "NVIDIA L4", Bus: "00000000:00:03.0", CC: "8.9", SMs: 58,
			Memory: 24152899584, ECC: true, LimitMW: 72000, Virtualization: 1}),
		native("l40s-r610", "L40S: no MIG", r610, GPU{UUID: uuid(31), Name: "NVIDIA L40S", Bus: "00000000:41:00.0", CC: "8.9", SMs: 142, Memory: 48305799168,
			ECC: true, LimitMW: 350000}),
		native("b200-r615", "Blackwell, 148 SMs", r615, GPU{UUID: uuid(32), Name: "NVIDIA B200", Bus: "00000000:1B:00.0", CC: "10.0", SMs: 148,
			Memory: 191503532032, ECC: true, LimitMW: 1000000, Fabric: 3, MIG: &MIG{Max: 7, Profiles: profiles(b200Profiles)}}),
		native("gh200-r580", "Grace Hopper: address translation services, arm64", r580, GPU{UUID: uuid(33), Name: "NVIDIA GH200 480GB", Bus: "00000009:01:00.0",
			CC: "9.0", SMs: 132, Memory: 102005473280, ECC: true, LimitMW: 900000, Addressing: 2, MIG: &MIG{Max: 7, Profiles: profiles(gh200Profiles)}}).
			with(func(h *Host) { h.GOARCH = "arm64" }),
		native("vgpu-guest", "a vGPU in a guest: fields are not available, the name ends in the profile", release{"550.163.01", 12040, 0}, GPU{UUID: uuid(34),
			Name: "NVIDIA H100L-2-24C", Bus: "00000000:02:00.0", CC: "9.0", SMs: 132, Memory: 25769803776, Virtualization: 2,
			Codes: map[string]int{"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetTemperature": 3, "nvmlDeviceGetPersistenceMode": 3, "nvmlDeviceGetEnforcedPowerLimit": 3,
				"nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetMigMode": 3},
			SMI: map[string]string{"power.draw": "[N/A]", "temperature.gpu": "[N/A]", "power.limit": "[N/A]", "persistence_mode": "[N/A]"}}),
		native("vgpu-host", "the host of vGPUs", r570, func() GPU {
			g := GPU{UUID: uuid(35), Name: "NVIDIA A40", Bus: "00000000:65:00.0", CC: "8.6", SMs: 84, Memory: 48305799168, Cores: 84 * 128, ECC: true,
				LimitMW: 300000, Virtualization: 3}
			return g
		}()).with(func(h *Host) { h.CUDA = nil }),
		native("virtual-two-a10", "two passed-through GPUs whose CUDA order is not NVML's", r580,
			GPU{UUID: uuid(36), Name: "NVIDIA A10", Bus: "00000000:0A:00.0", CC: "8.6", SMs: 72, Memory: 24146608128, Cores: 9216, ECC: true, LimitMW: 150000, Virtualization: 1},
			GPU{UUID: uuid(37), Name: "NVIDIA A10", Bus: "00000000:10:00.0", CC: "8.6", SMs: 72, Memory: 24146608128, Cores: 9216, ECC: true, LimitMW: 150000, Virtualization: 1}),
	}
}

func migMixed(n int) GPU {
	g := h100(n)
	m := g.MIG
	m.Current, m.Pending = true, true
	m.Devices = []MIGDevice{
		{Slot: 0, GI: 1, CI: 0, SMs: 60, Slices: 3, ComputeSlices: 3, UUID: "MIG-377e0049-554c-540b-93c6-d0976f8426cb", Name: "NVIDIA H100 80GB HBM3 MIG 3g.40gb", MemoryMiB: 40448},
		{Slot: 1, GI: 5, CI: 0, SMs: 32, Slices: 2, ComputeSlices: 2, UUID: "MIG-377e0049-554c-540b-93c6-d0976f8426cc", Name: "NVIDIA H100 80GB HBM3 MIG 2g.20gb", MemoryMiB: 20096},
		{Slot: 4, GI: 13, CI: 0, SMs: 16, Slices: 1, ComputeSlices: 1, UUID: "MIG-377e0049-554c-540b-93c6-d0976f8426cd", Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MemoryMiB: 9984},
	}
	for i := range m.Profiles {
		m.Profiles[i].Remaining = 0
	}
	m.Profiles[0].Remaining = 1
	return g
}

func a100MIG(n int, old bool) GPU {
	g := a100(n)
	m := g.MIG
	m.Current, m.Pending = true, true
	for i := range 7 {
		d := MIGDevice{Slot: i, GI: 7 + i, CI: 0, SMs: 14, Slices: 1, ComputeSlices: 1, Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", MemoryMiB: 4864}
		d.UUID = "MIG-" + uuid(n*100 + i)[len("GPU-"):]
		if old {
			d.UUID = "MIG-" + g.UUID + "/" + string(rune('7'+i)) + "/0"
			if i > 2 {
				continue
			}
		}
		m.Devices = append(m.Devices, d)
	}
	for i := range m.Profiles {
		m.Profiles[i].Remaining = 0
	}
	return g
}
