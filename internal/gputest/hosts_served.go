package gputest

// served are hosts on which MPS runs, ran, or something serves.
func served() []Host {
	mps := func(d ...MPSDaemon) func(*Host) { return func(h *Host) { h.MPS.Daemons = d } }
	// The table of a host with 132 SMs and one partition, in both shapes: as documented, and as a tool's fixtures have it.
	seven := "GPU           Partition                             free  used  free  used  clients\n" +
		"                                                    chunk chunk SM    SM\n" +
		"GPU-c0ffee72  -                                     5     10    52    80    -\n" +
		"GPU-c0ffee72  D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA  -     10    -     80    1\n"
	five := "GPU           Partition                             free   used   free used clients\n" +
		"                                                    chunks chunks SM   SM\n" +
		"GPU-c0ffee73  5 10 52 80\n" +
		"GPU-c0ffee73  D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA 10 80 Yes\n"
	return []Host{
		native("h200-mps-idle", "a daemon without a server: cuInit of a process that sees it would start one", r580, h200(110)).with(
			mps(MPSDaemon{PID: 4100})),
		native("h200-mps-client", "a daemon, a server and a client at 25 %", r580, func() GPU {
			g := h200(111)
			g.MPSClients = []Process{{PID: 4300, Used: 2 << 30}}
			g.Compute = []Process{{PID: 4200, Used: 30 << 20}}
			return g
		}()).with(mps(MPSDaemon{PID: 4100, Servers: []int{4200}}), func(h *Host) {
			h.process(4300, "/usr/bin/python3.12", "python3", "-m", "worker")
		}),
		native("h200-lspart-unknown", "control binary 13000 with a daemon: lspart is unknown and the exit code is 0", r580, h200(112)).with(
			mps(MPSDaemon{PID: 4100, Arguments: []string{"-f"}})),
		native("h200-mps-static", "a daemon in static mode without partitions: 15 chunks, 132 SMs", r590, h200(113)).with(
			mps(MPSDaemon{PID: 4100, Arguments: []string{"-d", "-S"}})),
		native("h100-lspart-seven", "132 SMs, one partition of 10 chunks, the documented table", r590, h100(114)).with(
			mps(MPSDaemon{PID: 4100, Arguments: []string{"-d", "--static-partitioning"}, Servers: []int{4200}, Texts: map[string]string{"lspart": seven}})),
		native("h100-lspart-five", "132 SMs, one partition of 10 chunks, the table of five columns", r590, h100(115)).with(
			mps(MPSDaemon{PID: 4100, Arguments: []string{"-d", "-S"}, Servers: []int{4200}, Texts: map[string]string{"lspart": five}})),
		native("l40s-mps-dynamic", "a release with static partitioning whose daemon runs without it", r610, GPU{UUID: uuid(116), Name: "NVIDIA L40S", Bus: "00000000:41:00.0",
			CC: "8.9", SMs: 142, Memory: 48305799168, ECC: true, LimitMW: 350000}).with(mps(MPSDaemon{PID: 4100, Servers: []int{4200}})),
		native("exclusive-process-mps", "EXCLUSIVE_PROCESS: the MPS server holds the GPU and a process without MPS is refused", r580, func() GPU {
			g := h100(117)
			g.ComputeMode = 3
			g.Compute = []Process{{PID: 4200, Used: 30 << 20}}
			return g
		}()).with(mps(MPSDaemon{PID: 4100, Servers: []int{4200}}), func(h *Host) { h.CUDA[0].Init = 46 }),
		native("exclusive-process", "EXCLUSIVE_PROCESS and nobody on the GPU", r580, func() GPU {
			g := h100(118)
			g.ComputeMode = 3
			return g
		}()),
		native("mps-stale-pid-file", "a pid file whose process is gone", r580, h100(119)).with(
			mps(MPSDaemon{PID: 4100, NoProcess: true})),
		native("mps-recycled-pid", "a pid file whose pid belongs to another program by now", r580, h100(120)).with(
			mps(MPSDaemon{PID: 4100, NoProcess: true}), func(h *Host) { h.process(4100, "/usr/sbin/nginx", "nginx", "-g", "daemon off;") }),
		native("mps-zombie", "the daemon ended and nobody waited for it", r580, h100(121)).with(
			mps(MPSDaemon{PID: 4100, Zombie: true})),
		native("mps-other-user", "the daemon is another user's and its environment can't be read", r580, h100(122)).with(
			mps(MPSDaemon{PID: 4100, UID: 1001, DenyEnviron: true, Servers: []int{4200}, Texts: map[string]string{"get_server_list": "4200"}})),
		native("mps-two-daemons", "two daemons with folders of their own, one in static mode", r590, h100(123)).with(
			mps(MPSDaemon{PID: 4100, Pipe: "/run/user/1000/mps-a"}, MPSDaemon{PID: 4110, Pipe: "/srv/mps-b", Arguments: []string{"-d", "-S"}})),
		native("mps-v3", "a daemon of protocol 3 in its own default folder", r615, h200(124)).with(
			mps(MPSDaemon{PID: 4100, Arguments: []string{"-d", "-p", "3"}, Pipe: "/run/nvidia-mps", Servers: []int{4200}})),
		native("mps-deaf", "a daemon that doesn't answer on its socket", r580, h100(125)).with(
			mps(MPSDaemon{PID: 4100, Deaf: true})),
		native("mps-control-hung", "the control program never answers", r580, h100(126)).with(
			mps(MPSDaemon{PID: 4100}), func(h *Host) { h.MPS.Hang = true }),
		native("mps-fault", "the server is in state FAULT", r580, h100(127)).with(
			mps(MPSDaemon{PID: 4100, Servers: []int{4200}, Texts: map[string]string{"get_server_status 4200": "FAULT"}})),
		native("mps-long-path", "a pipe folder whose path is too long for a socket", r580, h100(128)).with(func(h *Host) {
			h.Env = map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/var/lib/a-very-long-folder-name-for-a-pipe/that-nobody-would-choose/but-a-scheduler-did/job-000000000000000001/mps-pipe"}
		}),
		native("stale-server", "the seed's stale server: it holds the GPU and its executable was unlinked", r550, GPU{UUID: uuid(129), Name: "NVIDIA L4", Bus: "00000000:00:03.0",
			CC: "8.9", SMs: 58, Memory: 24152899584, Used: 5 << 30, ECC: true, LimitMW: 72000, Compute: []Process{{PID: 31337, Used: 5 << 30}}}).with(func(h *Host) {
			h.process(31337, "/tmp/fak-serve (deleted)", "/tmp/fak-serve", "serve", "--port", "8080")
		}),
	}
}
