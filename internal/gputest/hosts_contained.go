package gputest

import "fmt"

// dockerEngine is what an engine says of itself.
func dockerEngine(version, os string, runtimes ...string) map[string]string {
	list := `"runc": {"path": "runc"}`
	for _, r := range runtimes {
		list += fmt.Sprintf(`, %q: {"path": "nvidia-container-runtime"}`, r)
	}
	info := fmt.Sprintf(`{"ID": "a1b2", "ServerVersion": %q, "OperatingSystem": %q, "OSType": "linux", "Architecture": "x86_64", "Runtimes": {%s}, "DefaultRuntime": "runc", "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "Name": "node-7"}`, version, os, list)
	return map[string]string{
		"/_ping":   "OK",
		"/version": fmt.Sprintf(`{"Version": %q, "ApiVersion": "1.51", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64", "KernelVersion": "6.8.0-60-generic"}`, version),
		"/info":    info,
	}
}

const cdiSpec = `---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    options: [ro, nosuid, nodev, bind]
`

// inContainer makes the host one that is seen from a container.
func inContainer(kind string) func(*Host) {
	return func(h *Host) {
		h.Links["/proc/self/ns/pid"] = "pid:[4026532837]"
		h.Files["/proc/self/mountinfo"] = "1200 1100 0:300 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/l\n"
		switch kind {
		case "docker":
			h.Files["/.dockerenv"] = ""
			h.Files["/proc/self/cgroup"] = "0::/\n"
		case "podman":
			h.Files["/run/.containerenv"] = "engine=\"podman-5.4.0\"\n"
			h.Files["/proc/self/cgroup"] = "0::/\n"
		case "kubernetes":
			h.Files["/proc/self/cgroup"] = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234.slice/cri-containerd-abcd.scope\n"
			h.Files["/var/run/secrets/kubernetes.io/serviceaccount/namespace"] = "default\n"
			h.Env["KUBERNETES_SERVICE_HOST"] = "10.96.0.1"
		}
	}
}

func contained() []Host {
	gpu := func(n int) GPU { return h100(n) }
	env := func(pairs ...string) func(*Host) {
		return func(h *Host) {
			if h.Env == nil {
				h.Env = make(map[string]string)
			}
			for i := 0; i+1 < len(pairs); i += 2 {
				h.Env[pairs[i]] = pairs[i+1]
			}
		}
	}
	return []Host{
		native("docker-host-cdi", "a host with a Docker engine, the NVIDIA runtime, CDI specs, PyTorch, FlashInfer and a toolkit", r580, gpu(70)).with(func(h *Host) {
			h.Docker = dockerEngine("28.3.2", "Ubuntu 24.04.2 LTS", "nvidia")
			h.Files["/etc/cdi/nvidia.yaml"] = cdiSpec
			h.Files["/etc/docker/daemon.json"] = `{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "features": {"cdi": true}}`
			h.Files["/etc/nvidia-container-runtime/config.toml"] = "[nvidia-container-runtime]\nmode = \"auto\"\n"
			h.Files["/usr/local/cuda-13.0/version.json"] = `{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}, "cuda_nvcc": {"name": "CUDA NVCC", "version": "13.0.88"}}`
			site := "/usr/local/lib/python3.12/dist-packages/"
			h.Files[site+"torch-2.12.0+cu130.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0+cu130\n"
			h.Files[site+"torch/version.py"] = "__version__ = '2.12.0+cu130'\ncuda: Optional[str] = '13.0'\n"
			h.Files[site+"flashinfer_python-0.6.15.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 0.6.15\n"
			h.Runtime = []Runtime{{Version: 13000, Hidden: true, Folder: "/usr/local/cuda-13.0/lib64"}}
		}),
		native("container-compute-only", "a container without the utility capability: no NVML, no nvidia-smi, no MPS control", r580, gpu(71)).with(
			env("NVIDIA_VISIBLE_DEVICES", "all", "NVIDIA_DRIVER_CAPABILITIES", "compute"), inContainer("docker"), func(h *Host) {
				h.NVML, h.SMI, h.MPS = nil, nil, nil
			}),
		native("container-no-gpu", "a container to which no GPU was given: the module is the host's, no library and no device", r580).with(
			env(), inContainer("docker"), func(h *Host) {
				h.CUDA, h.NVML, h.SMI, h.MPS = nil, nil, nil, nil
				delete(h.Files, "/dev/nvidiactl")
				delete(h.Files, "/dev/nvidia-uvm")
			}),
		native("podman-one-of-two", "a rootless container that was given one GPU: its user namespace maps one range", r580, gpu(72)).with(
			env(), inContainer("podman"), func(h *Host) {
				h.Files["/proc/self/uid_map"] = "         0       1000          1\n         1     100000      65536\n"
				h.MPS = nil
				h.pci(gpu(73))
				h.Links[pciFolder(gpu(73))+"/driver"] = "../../../../bus/pci/drivers/nvidia"
			}),
		native("k8s-mps-pipe", "a pod of the device plugin with MPS: the pipe folder is mounted, the daemon runs in another namespace", r550, gpu(74)).with(
			env("CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=40780M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
			inContainer("kubernetes"), func(h *Host) {
				h.MPS = &MPS{NoProgram: true, Daemons: []MPSDaemon{{PID: 29, Pipe: "/mps/nvidia.com/gpu/pipe", NoProcess: true}}}
			}),
		native("k8s-node-mps", "the node of such a pod: a daemon for each resource, below the plugin's folder", r550, gpu(75)).with(func(h *Host) {
			h.MPS.Daemons = []MPSDaemon{{PID: 5150, Pipe: "/run/nvidia/mps/nvidia.com/gpu/pipe", Arguments: []string{"-d"}, Servers: []int{5200}}}
		}),
		native("k8s-mig-device", "a pod that was given one MIG device by its UUID", r570, a100MIG(76, false)).with(
			env("CUDA_VISIBLE_DEVICES", "MIG-377e0049-554c-540b-93c6-d0976f8426cb", "NVIDIA_VISIBLE_DEVICES", "MIG-377e0049-554c-540b-93c6-d0976f8426cb"),
			inContainer("kubernetes"), func(h *Host) {
				g := &h.GPUs[0]
				g.MIG.Devices = g.MIG.Devices[:1]
				g.MIG.Devices[0].UUID = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
				g.SMI = map[string]string{"memory.total": "[Insufficient Permissions]", "memory.free": "[Insufficient Permissions]", "memory.used": "[Insufficient Permissions]"}
				g.Codes = map[string]int{"nvmlDeviceGetGpuInstanceRemainingCapacity": 4}
			}),
		native("gvisor", "a gVisor sandbox: its kernel is its own, a few ioctls pass", r570, gpu(77)).with(env(), inContainer("docker"), func(h *Host) {
			h.Files["/proc/version"] = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"
			h.Files["/proc/sys/kernel/osrelease"] = "4.4.0\n"
			h.Files["/proc/sentry-meminfo"] = ""
			delete(h.Files, "/.dockerenv")
			delete(h.Files, "/sys/module/nvidia/version")
			h.MPS = nil
			h.GPUs[0].Codes = map[string]int{"cuDeviceGetDevResource": 801}
		}),
		native("hami-interposed", "a pod of HAMi: libvgpu.so is preloaded, resource calls are not supported, memory is a share", r550, gpu(78)).with(
			env("LD_PRELOAD", "$ROOT/usr/local/vgpu/libvgpu.so", "CUDA_DEVICE_MEMORY_LIMIT_0", "8192m", "CUDA_DEVICE_SM_LIMIT", "30"),
			inContainer("kubernetes"), func(h *Host) {
				h.Files["/etc/ld.so.preload"] = "/usr/local/vgpu/libvgpu.so\n"
				h.GPUs[0].Codes = map[string]int{"cuDeviceGetDevResource": 801}
				// The preloaded library is a real one, so that the loader takes it.
				h.CUDA = append(h.CUDA, CUDA{Folder: "/usr/local/vgpu", File: "libvgpu.so", Hidden: true, Version: 12040})
				h.MPS = nil
			}),
	}
}
