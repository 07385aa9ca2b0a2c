package recover

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMask(t *testing.T) {
	for _, c := range []struct{ argv, want string }{
		{"vllm|serve|Qwen/Qwen3-0.6B|--api-key|s3cret|--port|8000", "vllm|serve|Qwen/Qwen3-0.6B|--api-key|[masked]|--port|8000"},
		{"x|--api-key=s3cret|--max-tokens|8|--tokenizer|/m/t.json", "x|--api-key=[masked]|--max-tokens|8|--tokenizer|/m/t.json"},
		{"x|--apiKey|s3cret|--hf-token|abc|--model=/m/a.gguf", "x|--apiKey|[masked]|--hf-token|[masked]|--model=/m/a.gguf"},
		{"x|--api-key-file|/etc/key|--ssl-keyfile|k.pem|--key|/etc/key", "x|--api-key-file|/etc/key|--ssl-keyfile|k.pem|--key|[masked]"},
		{"env|OPENAI_API_KEY=sk|CUDA_VISIBLE_DEVICES=0|./server", "env|OPENAI_API_KEY=[masked]|CUDA_VISIBLE_DEVICES=[masked]|./server"},
		{"x|-H|Authorization: Bearer abc|-HX-Api-Key: abc|--header|a: b", "x|-H|[masked]|-H[masked]|--header|[masked]"},
		{"x|http://user:pw@host/v1|https://host/v1?key=1|http://127.0.0.1:8080/v1", "x|http://host/v1 [masked]|https://host/v1 [masked]|http://127.0.0.1:8080/v1"},
		{`x|--body-json|{"api_key": "abc"}|--config|{"a":1}`, `x|--body-json|[masked]|--config|{"a":1}`},
		{"x|hf_abcdefghijklmnop|sk-abcdefghijklmnop1234|eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln", "x|[masked]|[masked]|[masked]"},
		{"x|0123456789abcdef0123456789abcdef|/models/0123456789abcdef0123456789abcdef/m.gguf", "x|[masked]|/models/0123456789abcdef0123456789abcdef/m.gguf"},
		{"x|--auth|--port|80", "x|--auth|--port|80"},
		{"server --api-key s3cret: worker", "[masked]"}, // a title written over the arguments
		{"x|a\x1b[31mb|\xff", "x|a\uFFFD[31mb|\uFFFD"},
		{"x|--tensor-parallel-size=2|-ngl|99|-ub|512|--alias|a=b", "x|--tensor-parallel-size=2|-ngl|99|-ub|512|--alias|a=[masked]"},
	} {
		got, n := mask(strings.Split(c.argv, "|"))
		if strings.Join(got, "|") != c.want {
			t.Errorf("%q\ngot  %q\nwant %q", c.argv, strings.Join(got, "|"), c.want)
		}
		if want := strings.Count(c.want, masked); int(n) != want {
			t.Errorf("%q: %d masked, want %d", c.argv, n, want)
		}
	}
}

// FuzzMask plants a secret where programs take one: it is never shown.
func FuzzMask(f *testing.F) {
	f.Add("--port", "hunter2hunter2", uint8(0))
	f.Add("serve", "-x", uint8(2))
	f.Add("a=b", "p@ss word", uint8(5))
	f.Fuzz(func(t *testing.T, other, secret string, way uint8) {
		if len(secret) < 8 || strings.HasPrefix(secret, "--") || strings.Contains(other, secret) || strings.Contains(masked, secret) || strings.Contains(secret, masked) {
			return
		}
		ways := [][]string{{"--api-key", secret}, {"--api-key=" + secret}, {"-H", secret}, {"HF_TOKEN=" + secret}, {"--password", secret}, {"--aws.secret=" + secret}, {"-H" + secret}}
		added := ways[int(way)%len(ways)]
		for _, part := range []string{"--api-key=", "--aws.secret=", "HF_TOKEN=", "-H"} {
			if strings.Contains(part, secret) {
				return
			}
		}
		argv := slices.Concat([]string{"/usr/bin/server"}, added, []string{"--port", "80"})
		if !secretName(other) && !shortSecret[other] { // else it would swallow the flag
			argv = slices.Concat([]string{"/usr/bin/server", other}, added)
		}
		got, _ := mask(argv)
		for _, shown := range got[1:] {
			if strings.Contains(shown, secret) && shown != plain(other) {
				t.Fatalf("%q shows %q: %q", argv, secret, got)
			}
		}
	})
}

func TestEnvironmentNames(t *testing.T) {
	got := environmentNames([]byte("B=1\x00A=2=3\x00no value\x00=x\x00B=4\x00not a name=5\x00x\x1b=6\x00"))
	if want := []string{"A", "B"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := environmentNames(nil); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

func TestMountinfo(t *testing.T) {
	files, err := filepath.Glob("testdata/mountinfo/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mountinfo: %v", err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	table := parseMountinfo(b)
	want := []Mount{{"/tmp", "tmpfs"}, {"/var", "xfs"}, {"/mnt/with space\\and\uFFFDtab", "tmpfs"}, {"/super", "fuse.thing"}}
	if got := noexec(table); !slices.Equal(got, want) {
		t.Errorf("noexec %+v\nwant %+v", got, want)
	}
	for path, want := range map[string]string{"/var/not-there": "/var true", "/var/lib/models/not-there/x": "/var/lib/models false", "/not-there": "/ false", "/variable-not-there": "/ false", "/home/not-there": "/home false"} {
		point, isNoexec := holds(table, path)
		if got := fmt.Sprint(point, " ", isNoexec); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	// This machine's own.
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(parseMountinfo(own)); n != bytes.Count(own, []byte("\n")) {
		t.Errorf("%d of %d mounts were read", n, bytes.Count(own, []byte("\n")))
	}
}

func FuzzMountinfo(f *testing.F) {
	files, err := filepath.Glob("testdata/mountinfo/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no mountinfo: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		table := parseMountinfo(b)
		if n := len(noexec(table)); n > len(table) {
			t.Fatalf("%d of %d", n, len(table))
		}
		holds(table, "/not-there")
	})
}

func TestSockets(t *testing.T) {
	word := func(b ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b)) }
	line := func(addr, state, inode string) string {
		return "   0: " + addr + ":1F90 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000  1000        0 " + inode + " 1 0 100\n"
	}
	v6 := word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 1)
	mapped := word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0xff, 0xff) + word(10, 0, 0, 7)
	table := "  sl  local_address …\n" + line(word(127, 0, 0, 1), "0A", "11") + line(word(127, 0, 0, 1), "01", "12") + line(word(10, 0, 0, 1), "0A", "99") +
		line(v6, "0A", "13") + line(mapped, "0A", "14") + line("XYZ", "0A", "11") + line(word(127, 0, 0, 1), "0A", "11") + "short\n"
	var got []string
	for _, l := range parseSockets([]byte(table), map[string]bool{"11": true, "12": true, "13": true, "14": true}) {
		got = append(got, fmt.Sprint(l.Address, " ", l.Port))
	}
	if want := []string{"127.0.0.1 8080", "::1 8080", "10.0.0.7 8080"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestOwnListeners: what a process listens on is found, and what may be asked told from the rest.
func TestOwnListeners(t *testing.T) {
	want := map[int64]string{}
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue // no IPv6
		}
		defer l.Close()
		want[int64(l.Addr().(*net.TCPAddr).Port)] = addr
	}
	list, err := proc{os.Getpid()}.listeners()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.Reason != "" || !strings.HasPrefix(l.base, "http://127.0.0.1:") && !strings.HasPrefix(l.base, "http://[::1]:") {
			t.Errorf("%+v", l)
		}
		delete(want, l.Port)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}

func FuzzSockets(f *testing.F) {
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte("0: 0100007F:1F90 0:0 0A 0:0 0:0 0 0 0 11 1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, l := range parseSockets(b, map[string]bool{"11": true, "0": true}) {
			if !l.at.IsValid() || l.Port > 65535 {
				t.Fatalf("%+v", l)
			}
		}
	})
}

func TestDeletedMappings(t *testing.T) {
	maps := "00400000-00500000 r-xp 00000000 fe:00 12   /opt/server (deleted)\n7f00-7f01 r-xp 00000000 fe:00 13 /usr/lib/libcudart.so.12 (deleted)\n" +
		"7f01-7f02 r--p 00000000 fe:00 13 /usr/lib/libcudart.so.12 (deleted)\n7f02-7f03 rw-s 00000000 00:01 14 /dev/shm/x (deleted)\n7f03-7f04 rw-s 0 00:01 15 /memfd:pool (deleted)\n" +
		"7f04-7f05 r-xp 0 fe:00 16 /usr/lib/libc.so.6\n7f05-7f06 rw-p 0 00:00 0\n7f06-7f07 rw-p 0 00:00 0 [heap]\n7f07-7f08 rw-s 0 00:01 17 /SYSV00000000 (deleted)\nshort\n"
	if got := parseDeleted([]byte(maps), "/opt/server"); !slices.Equal(got, []string{"/usr/lib/libcudart.so.12"}) {
		t.Errorf("%q", got)
	}
}

// TestBuildIDs sets the reader against debug/elf on this machine's own programs.
func TestBuildIDs(t *testing.T) {
	paths := []string{"/proc/self/exe"}
	for _, pattern := range []string{"/bin/*", "/usr/lib/*/libc.so.6", "/lib/*/libm.so.6"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, more[:min(len(more), 40)]...)
	}
	compared := 0
	for _, path := range paths {
		want, ok := oracle(path)
		if !ok {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		got, _ := buildIDs(f)
		f.Close()
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		compared++
	}
	if compared < 1 {
		t.Error("no ELF file was found")
	}
}

// oracle is what the standard library finds in the section that holds the linker's build id.
func oracle(path string) (string, bool) {
	f, err := elf.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		return "", true
	}
	b, err := s.Data()
	if err != nil || len(b) < 16 {
		return "", false
	}
	return hex.EncodeToString(b[16:min(len(b), 16+int(f.ByteOrder.Uint32(b[4:])))]), true
}

func FuzzBuildIDs(f *testing.F) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self[:4096])
	for _, class := range []byte{1, 2} {
		for _, order := range []byte{1, 2} {
			f.Add(small(class, order))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		gnu, goID := buildIDs(bytes.NewReader(b))
		if len(gnu) > 2*maxBuildID || len(goID) > 4*maxBuildID {
			t.Fatalf("%d, %d", len(gnu), len(goID))
		}
	})
}

// small is the smallest ELF file with one segment of one note: GNU, type 3, 4 bytes.
func small(class, order byte) []byte {
	var o binary.AppendByteOrder = binary.LittleEndian
	if order == 2 {
		o = binary.BigEndian
	}
	b := append([]byte{0x7f, 'E', 'L', 'F', class, order, 1}, make([]byte, 64-7)...)
	set := func(at int, v []byte) { copy(b[at:], v) }
	notes := append(o.AppendUint32(o.AppendUint32(o.AppendUint32(nil, 4), 4), 3), "GNU\x00\xde\xad\xbe\xef"...)
	if class == 2 {
		set(32, o.AppendUint64(nil, 64))
		set(54, o.AppendUint16(o.AppendUint16(nil, 56), 1))
		p := o.AppendUint32(o.AppendUint32(nil, 4), 4)
		for _, v := range []uint64{120, 0, 0, uint64(len(notes)), uint64(len(notes)), 4} {
			p = o.AppendUint64(p, v)
		}
		return slices.Concat(b, p, notes)
	}
	set(28, o.AppendUint32(nil, 64))
	set(42, o.AppendUint16(o.AppendUint16(nil, 32), 1))
	var p []byte
	for _, v := range []uint32{4, 96, 0, 0, uint32(len(notes)), uint32(len(notes)), 4, 4} {
		p = o.AppendUint32(p, v)
	}
	return slices.Concat(b, p, notes)
}

func TestSmallELF(t *testing.T) {
	for _, class := range []byte{1, 2} {
		for _, order := range []byte{1, 2} {
			if gnu, goID := buildIDs(bytes.NewReader(small(class, order))); gnu != "deadbeef" || goID != "" {
				t.Errorf("class %d, order %d: %q, %q", class, order, gnu, goID)
			}
		}
	}
}

func TestSavedName(t *testing.T) {
	for path, want := range map[string]string{"/opt/fak": "fak", "/opt/model server": "model server", "/": "executable", "": "executable", "/x/recovery.json": "executable",
		"/x/.hidden": "executable", "/x/-rf": "executable", "/x/a\uFFFDb": "executable", "/memfd:name": "memfd-name", "/x/" + strings.Repeat("a", 201): "executable"} {
		if got := savedName(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"a/b-c": "a/b-c", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "[masked]": "'[masked]'"} {
		if got := quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
