// Package gputest plays GPU hosts for tests: hosts are data (Host, Hosts), and Start makes a machine of one: a folder that
// stands for the root of its file system, the driver libraries as real C shared libraries built by gcc, nvidia-smi and
// nvidia-cuda-mps-control as scripts. All code above the driver's boundary is the real code. Every call and every input is
// logged, so that a test can prove that nothing mutating was asked. For tests only.
package gputest

// Host is one machine as data. The zero value of a part means that it isn't there, unless said otherwise.
type Host struct {
	// Name is unique and fit for a file's name; Note says what the host plays and where its facts come from.
	Name, Note string
	// GOARCH is that of the host played: "amd64" unless set.
	GOARCH string

	CUDA    []CUDA    // libcuda.so.1, each in its folder
	NVML    []NVML    // libnvidia-ml.so.1
	Runtime []Runtime // libcudart
	SMI     *SMI
	MPS     *MPS
	GPUs    []GPU
	// Faults change what the libraries do.
	Faults []Fault

	// Files maps paths of the host, with their leading slash, to contents; Links to link targets, written as they are (so
	// that /proc/<pid>/exe can dangle, or end in " (deleted)"). Folders are empty folders.
	Files   map[string]string
	Links   map[string]string
	Folders []string
	// Env is added to the environment that the inspected host has.
	Env map[string]string
	// Docker maps paths of the Docker engine's API to JSON bodies, served on /var/run/docker.sock; nil means no engine.
	Docker map[string]string
}

// CUDA is one libcuda.so.1 of a host.
type CUDA struct {
	// Folder is where it lies, "/usr/lib/x86_64-linux-gnu" unless set. Hidden means that the loader's path lacks the folder.
	Folder string
	Hidden bool
	// File is its name where that isn't libcuda.so.1.
	File string
	// Version is cuDriverGetVersion's integer, such as 13000, and decides which symbols the library exports; Exports
	// overrides the latter (a shim exports what it may not do).
	Version, Exports int
	// Init is the code of cuInit.
	Init int
}

// NVML is one libnvidia-ml.so.1 of a host.
type NVML struct {
	Folder string
	Hidden bool
	Driver string // "580.159.04"
	CUDA   int    // nvmlSystemGetCudaDriverVersion_v2
	// Exports is the CUDA version whose NVML this is; CUDA unless set. Below 11000 it lacks MIG and the v2 and v3 calls.
	Exports int
	Init    int // code of initialising
}

// Runtime is one libcudart of a host.
type Runtime struct {
	Folder  string // "/usr/local/cuda/lib64" unless set
	Hidden  bool
	Version int // 13020; decides soname and symbols
}

// SMIBehaviour is how nvidia-smi answers.
type SMIBehaviour string

// Behaviours of nvidia-smi.
const (
	SMINormal SMIBehaviour = ""
	// SMIUninterruptible stays in state D, as the parent of vfork(2) whose child doesn't exec.
	SMIUninterruptible SMIBehaviour = "uninterruptible"
	// SMIGrandchild ignores SIGTERM, and a descendant outside its process group keeps its output open.
	SMIGrandchild SMIBehaviour = "grandchild"
	// SMIText prints Text to stdout and exits with Exit.
	SMIText SMIBehaviour = "text"
)

// SMI is a host's nvidia-smi: /usr/bin/nvidia-smi unless Folder is set.
type SMI struct {
	Folder    string
	Behaviour SMIBehaviour
	Text      string
	Exit      int
	// Driver and CUDA are what it prints; those of the first NVML unless set.
	Driver string
	CUDA   int
}

// MPS is a host's nvidia-cuda-mps-control and its daemons.
type MPS struct {
	// Folder of the program, "/usr/bin" unless set; NoProgram means that only daemons or folders exist.
	Folder    string
	NoProgram bool
	Version   int // binary version, such as 13000
	// Hang makes the program never answer.
	Hang    bool
	Daemons []MPSDaemon
}

// MPSDaemon is a running control daemon, or what is left of one.
type MPSDaemon struct {
	PID, UID int
	// Arguments follow the program's name in its command line: "-d" unless set.
	Arguments []string
	// Pipe is its folder: "/tmp/nvidia-mps" unless set. HidePipe leaves it out of its environment.
	Pipe     string
	HidePipe bool
	// NoProcess: only the folder and the pid file are left. Zombie: the process has ended and nobody waited for it.
	NoProcess, Zombie bool
	// PIDFile replaces the content of the pid file.
	PIDFile string
	// DenyEnviron makes /proc/<pid>/environ unreadable (for any user but root).
	DenyEnviron bool
	Servers     []int
	// Deaf: nothing answers on its socket.
	Deaf bool
	// Texts maps inputs, such as "lspart", to answers that differ from what the fields above make.
	Texts map[string]string
}

// GPU is one GPU as data. Where a driver wouldn't answer, Codes holds the result.
type GPU struct {
	UUID string // "GPU-…"
	Name string
	Bus  string // "00000000:06:00.0"
	CC   string // "9.0"
	SMs  int
	// MinPartition and Alignment are the SM resource's; those of the compute capability unless set.
	MinPartition, Alignment int
	Memory                  uint64 // bytes
	Used, Reserved          uint64 // bytes
	Integrated              bool
	Cores                   int  // SMs × 128 unless set
	ComputeMode             int  // CUDA's and NVML's: 0 default, 2 prohibited, 3 exclusive process
	Display                 bool // attached and active
	NoPersistence           bool
	Virtualization          int // NVML's: 0 none, 1 passthrough, 2 guest, 3 host
	Addressing              int // NVML's: 0 none, 1 HMM, 2 ATS
	ECC                     bool
	MIG                     *MIG
	Compute                 []Process
	Graphics                []Process
	MPSClients              []Process
	// Power, clocks and temperature; plausible values unless set.
	PowerMW, LimitMW, TemperatureC int
	Throttle                       uint64
	UncorrectedECC                 uint64
	RemapPending, RemapFailed      bool
	Fabric                         int // NVML's state: 0 not supported, 3 completed
	Workqueues                     int // concurrency limit; 8 unless set
	// Codes maps a symbol to the code that it returns for this GPU instead of an answer: CUresult for cu…, nvmlReturn_t for
	// nvml….
	Codes map[string]int
	// SMI maps fields of nvidia-smi --query-gpu to the text that replaces what the fields above make.
	SMI map[string]string
	// NoCUDA: libcuda doesn't list it. NoNVML: neither NVML nor nvidia-smi list it. Lost: NVML's code for its handle.
	NoCUDA, NoNVML bool
	Lost           int
	// KeepsMemory: device memory of a process stays taken after its end.
	KeepsMemory bool
}

// Process holds a context on a GPU.
type Process struct {
	PID  int
	Used uint64 // bytes; all ones where the driver doesn't know
}

// MIG is a GPU's multi-instance state.
type MIG struct {
	Current, Pending bool
	Max              int // slots
	Profiles         []Profile
	Devices          []MIGDevice
}

// Profile is a GPU instance profile.
type Profile struct {
	Index, ID, Slices, Instances, SMs int
	MemoryMiB                         uint64
	Name                              string
	Remaining                         int
}

// MIGDevice is one MIG device in its slot.
type MIGDevice struct {
	Slot, GI, CI, SMs, Slices, ComputeSlices int
	UUID, Name                               string
	MemoryMiB                                uint64
}

// Action is what a fault does.
type Action string

// Actions of a fault.
const (
	Hang  Action = "hang"
	Crash Action = "crash" // a segmentation fault
	Exit  Action = "exit"  // the library ends the process
	Noise Action = "noise" // prints on stdout and stderr, then answers
	Lie   Action = "lie"   // answers success and fills nothing
)

// Fault makes a function misbehave at its n-th call in a process, counted from 1; 0 means at each. Where Action is empty it
// returns Code.
type Fault struct {
	Symbol string
	Call   int
	Code   int
	Action Action
}
