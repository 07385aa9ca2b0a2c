package inspect

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/gputest"
	"cotenant/internal/testenv"
)

// traceRoot names the root of the host that a traced run of this test binary inspects.
const traceRoot = "COTENANT_TEST_TRACE_ROOT"

// traced inspects and exits, where this process was started to be traced.
func traced() {
	root := os.Getenv(traceRoot)
	if root == "" {
		return
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, traceRoot+"=") })
	r := Run(context.Background(), Options{Root: root, Env: env, MPSPartitions: true})
	if err := r.WriteJSON(os.Stdout); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

var (
	callForm  = regexp.MustCompile(`^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)`)
	quoteForm = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// allowedPrograms are the programs of the host that may be run, each with the arguments that it may get.
var allowedPrograms = map[string]*regexp.Regexp{
	"nvidia-smi":              regexp.MustCompile(`^--query-gpu=[a-z_.,]+ --format=csv,noheader,nounits$`),
	"nvidia-cuda-mps-control": regexp.MustCompile(`^(-v|server list --format=csv,noheader|device list --format=csv,noheader|sm-partition list --all --format=csv,noheader|)$`),
	"nvidia-ctk":              regexp.MustCompile(`^--version$`),
	"nvcc":                    regexp.MustCompile(`^--version$`),
}

// Every system call of an inspection, on a host with everything, shows that nothing is written but a folder of our own, that no
// other program is run, that nothing on a network is asked and no process is signalled.
func TestSystemCallsAreReadOnly(t *testing.T) {
	strace := testenv.Need(t, "strace", "install strace")
	needLibraries(t)
	for _, name := range []string{"h100-lspart-seven", "docker-host-cdi", "mps-v3", "rtx5090-wsl2", "no-gpu"} {
		t.Run(name, func(t *testing.T) { traceHost(t, strace, gputest.Named(name)) })
	}
}

func traceHost(t *testing.T, strace string, h gputest.Host) {
	m := gputest.Start(t, h)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "trace")
	calls := "trace=execve,execveat,open,openat,openat2,creat,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat," +
		"chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,mknod,mknodat,mount,umount2,connect,bind,sendto,kill,tkill,tgkill,pidfd_send_signal,ptrace,setns,ioctl,init_module,finit_module,delete_module,setxattr,sethostname"
	cmd := exec.Command(strace, "-f", "-qq", "-s", "400", "-e", calls, "-e", "signal=none", "-o", log, self)
	cmd.Env = append(slices.Clone(m.Env), traceRoot+"="+m.Root)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if strings.Contains(stderr.String(), "ptrace") {
			testenv.Missing(t, "ptrace", "allow this user to trace its own processes")
		}
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	if !bytes.Contains(out, []byte(`"mutated_state": false`)) {
		t.Fatalf("no report: %s", out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		c := callForm.FindStringSubmatch(line)
		if c == nil {
			continue
		}
		seen++
		if why := mutates(m.Root, self, c[1], c[2]); why != "" {
			t.Errorf("%s: %s", why, strings.ReplaceAll(strings.TrimSpace(line), m.Root, "ROOT"))
		}
	}
	if seen < 15 {
		t.Errorf("only %d system calls were seen", seen)
	}
	if got := m.Mutations(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// mutates says why a system call isn't allowed; empty where it is.
func mutates(root, self, call, args string) string {
	var quoted []string
	for _, q := range quoteForm.FindAllStringSubmatch(args, -1) {
		quoted = append(quoted, q[1])
	}
	path := ""
	if len(quoted) > 0 {
		path = quoted[0]
	}
	// The one thing made: a private pipe folder, so that libcuda meets no MPS daemon. The runtime locks down its own.
	own := strings.Contains(path, "/cotenant-mps-")
	switch call {
	case "execve":
		return runs(root, self, path, quoted)
	case "open", "openat", "openat2", "creat":
		writes := strings.Contains(args, "O_WRONLY") || strings.Contains(args, "O_RDWR") || strings.Contains(args, "O_CREAT") || call == "creat"
		// The fake programs and libraries log what they are asked.
		if writes && path != "/dev/null" && path != "/dev/tty" && path != filepath.Join(root, ".fake", "log") {
			return "opened for writing"
		}
		return ""
	case "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat":
		if own {
			return ""
		}
	case "connect":
		if strings.Contains(args, "AF_UNIX") && strings.Contains(args, "docker.sock") {
			return ""
		}
	case "ioctl":
		// Terminal queries of shells and of the runtime.
		if strings.Contains(args, "TCGETS") || strings.Contains(args, "TIOCGWINSZ") {
			return ""
		}
	case "tgkill":
		// Go's scheduler preempts its own threads.
		if strings.Contains(args, "SIGURG") {
			return ""
		}
	case "pidfd_send_signal":
		// Signal 0 signals nothing: Go asks whether the kernel has the call.
		if f := strings.Split(args, ", "); len(f) > 1 && f[1] == "0" {
			return ""
		}
	case "sendto":
		return "" // on the one connection that is allowed
	}
	return "not a read"
}

// runs judges an execve: our own program, an allowed program with allowed arguments, or what those scripts run.
func runs(root, self, path string, quoted []string) string {
	if path == self || path == "/proc/self/exe" {
		return ""
	}
	if !strings.HasPrefix(path, root) {
		// Interpreters and tools of the fakes' scripts.
		if dir := filepath.Dir(path); dir == "/bin" || dir == "/usr/bin" {
			return ""
		}
		return "a program of nobody's"
	}
	form, ok := allowedPrograms[filepath.Base(path)]
	if !ok {
		return "a program that isn't allowed"
	}
	if args := strings.Join(quoted[min(2, len(quoted)):], " "); !form.MatchString(args) {
		return "arguments that aren't allowed: " + args
	}
	return ""
}

// The judge of system calls itself: what it must catch.
func TestMutatesCatches(t *testing.T) {
	for _, c := range []struct{ call, args string }{
		{"execve", `"/r/usr/bin/nvidia-smi", ["nvidia-smi", "-mig", "1"], 0x1 /* 3 vars */) = 0`},
		{"execve", `"/r/usr/bin/nvidia-cuda-mps-control", ["nvidia-cuda-mps-control", "-d"], 0x1) = 0`},
		{"execve", `"/r/usr/bin/nvidia-modprobe", ["nvidia-modprobe"], 0x1) = 0`},
		{"openat", `AT_FDCWD, "/r/tmp/nvidia-mps/control", O_RDWR) = 3`},
		{"openat", `AT_FDCWD, "/etc/x", O_WRONLY|O_CREAT, 0644) = 3`},
		{"mkdirat", `AT_FDCWD, "/tmp/other", 0700) = 0`},
		{"connect", `3, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("10.0.0.1")}, 16) = 0`},
		{"connect", `3, {sa_family=AF_UNIX, sun_path="/tmp/nvidia-mps/control"}, 110) = 0`},
		{"pidfd_send_signal", `14, SIGTERM, NULL, 0) = 0`},
		{"kill", `4100, SIGTERM) = 0`},
		{"ioctl", `3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ff) = 0`},
	} {
		if mutates("/r", "/self", c.call, c.args) == "" {
			t.Errorf("%s(%s was let through", c.call, c.args)
		}
	}
}
