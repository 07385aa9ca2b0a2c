package scrape

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
)

// write makes files below root; a content of "-> X" makes a symbolic link.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(content) > 3 && content[:3] == "-> " {
			err = os.Symlink(content[3:], path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func statLine(pid, parent int, utime, stime, start int64) string {
	return fmt.Sprintf("%d (a (b) c) S %d 1 1 0 -1 4194560 1 0 0 0 %d %d 0 0 20 0 9 0 %d 1 1 18446744073709551615\n", pid, parent, utime, stime, start)
}

func status(rss, hwm int) string {
	return fmt.Sprintf("Name:\tx\nVmHWM:\t%8d kB\nVmRSS:\t%8d kB\nThreads:\t3\n", hwm, rss)
}

// fixture is a machine with a server (10, children 11 and 13, 12 below 11), a forked listener (20 and 21) and a kernel thread (2).
func fixture(t *testing.T) Proc {
	root := t.TempDir()
	write(t, root, map[string]string{
		"10/stat": statLine(10, 1, 100, 50, 777), "10/status": status(1000, 2000), "10/fd/0": "-> /dev/null", "10/fd/5": "-> socket:[4242]",
		"11/stat": statLine(11, 10, 1, 2, 800), "11/status": status(10, 20), "11/fd/0": "-> /dev/null",
		"12/stat": statLine(12, 11, 3, 0, 900), "12/status": status(1, 2),
		"13/stat": statLine(13, 10, 0, 0, 950), "13/status": "Name:\tzombie\n",
		"20/stat": statLine(20, 1, 0, 0, 1), "20/status": status(5, 5), "20/fd/3": "-> socket:[555]",
		"21/stat": statLine(21, 20, 0, 0, 1), "21/status": status(5, 5), "21/fd/3": "-> socket:[555]",
		"2/stat": "2 (kthreadd) S 0 0", "2/status": "",
		"net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
			"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0\n" +
			"   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0\n",
		"net/tcp6": "  sl  local_address\n   0: 00000000000000000000000000000000:22B8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 555 1 0\n" +
			"   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 999 1 0\n",
		"stat":    "cpu  100 1 20 5000 30 2 3 4 50 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n",
		"meminfo": "MemTotal:       1000 kB\nMemAvailable:    600 kB\n",
	})
	return Proc{Root: root}
}

func TestProcess(t *testing.T) {
	got, err := fixture(t).Process(10)
	want := Process{PID: 10, RSSBytes: Some(1000 << 10), HWMBytes: Some(2000 << 10), CPUUS: Some(1_500_000), FDs: Some(2), StartUS: Some(7_770_000), Processes: 1}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, pid := range []int{2, 99} {
		if _, err := fixture(t).Process(pid); err == nil {
			t.Errorf("process %d was read", pid)
		}
	}
}

func TestTree(t *testing.T) {
	p := fixture(t)
	want := Process{PID: 10, RSSBytes: Some(1011 << 10), HWMBytes: Some(2022 << 10), CPUUS: Some(1_560_000), FDs: Some(3), StartUS: Some(7_770_000), Processes: 4}
	if got, err := p.Tree(10); err != nil || got != want {
		t.Errorf("by parent ids: %+v, %v; want %+v", got, err, want)
	}
	write(t, p.Root, map[string]string{"10/task/10/children": "11 ", "10/task/14/children": "13 \n", "11/task/11/children": "12 99", "12/task/12/children": "", "13/task/13/children": "10"})
	if got, err := p.Tree(10); err != nil || got != want {
		t.Errorf("by children: %+v, %v; want %+v", got, err, want)
	}
}

func TestListener(t *testing.T) {
	p := fixture(t)
	for port, want := range map[int]int{8080: 10, 8888: 20} {
		if got, err := p.Listener(port); err != nil || got != want {
			t.Errorf("port %d: %d, %v; want %d", port, got, err, want)
		}
	}
	for _, port := range []int{8081, 80, 1} { // connected, of another user, closed
		if pid, err := p.Listener(port); !errors.Is(err, ErrNoListener) {
			t.Errorf("port %d: %d, %v", port, pid, err)
		}
	}
}

func TestHost(t *testing.T) {
	want := Host{BusyUS: Some(130 * tick), AvailableBytes: Some(600 << 10)}
	if got := fixture(t).Host(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := (Proc{Root: t.TempDir()}).Host(); got != (Host{}) {
		t.Errorf("a machine without /proc: %+v", got)
	}
}

func TestOwnProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var p Proc
	if pid, err := p.Listener(l.Addr().(*net.TCPAddr).Port); err != nil || pid != os.Getpid() {
		t.Errorf("our own listener: %d, %v; want %d", pid, err, os.Getpid())
	}
	got, err := p.Tree(os.Getpid())
	if err != nil || got.RSSBytes.V < 1<<20 || got.HWMBytes.V < got.RSSBytes.V/2 || got.FDs.V < 3 || !got.CPUUS.OK || got.StartUS.V <= 0 {
		t.Errorf("ourselves: %+v, %v", got, err)
	}
	if h := p.Host(); h.BusyUS.V <= 0 || h.AvailableBytes.V <= 0 {
		t.Errorf("this machine: %+v", h)
	}
}

func FuzzStatFields(f *testing.F) {
	f.Add([]byte(statLine(1, 2, 3, 4, 5)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := statFields(b); err == nil {
			s.number(4)
			s.number(22)
		}
		busy(b)
		kilobytes(b, "VmRSS:")
	})
}

func TestSelf(t *testing.T) {
	s := NewSelf()
	runtime.GC()
	r := s.Sample()
	if r.HeapBytes <= 0 || r.Goroutines <= 0 || r.GCPauseUS <= 0 {
		t.Errorf("after a collection: %+v", r)
	}
}

func TestQuantileSince(t *testing.T) {
	h := &metrics.Float64Histogram{Counts: []uint64{98, 1, 1}, Buckets: []float64{0, 1e-6, 2e-6, 3e-6}}
	var last []uint64
	for _, test := range []struct {
		counts []uint64
		q      float64
		want   int64
	}{
		{[]uint64{98, 1, 1}, 0.99, 2},
		{[]uint64{98, 1, 1}, 0.99, 0}, // nothing new
		{[]uint64{98, 2, 2}, 1, 3},
		{[]uint64{99, 2, 2}, 1, 1},
	} {
		copy(h.Counts, test.counts)
		if got := quantileSince(h, &last, test.q); got != test.want {
			t.Errorf("%v: %d, want %d", test.counts, got, test.want)
		}
	}
}
