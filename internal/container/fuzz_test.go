package container

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sirupsen/logrus"
)

// FuzzCompose feeds the loader and the audit with what may stand in a Compose file. Neither may panic, and what passes the audit is
// what the default file's rules say, whatever the words.
func FuzzCompose(f *testing.F) {
	logrus.SetOutput(io.Discard) // compose-go's warnings
	f.Add(defaultFile)
	files, err := filepath.Glob("testdata/compose/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no corpus: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	base, err := NewPlan(testOptions(""))
	if err != nil {
		f.Fatal(err)
	}
	variables, err := base.variables()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := load(content, "", DefaultService, variables)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		w := base.w
		w.binary = ""
		if len(m.service.Volumes) > 0 && m.service.Volumes[0].Source == base.w.program.Path {
			w.binary = base.w.program.SHA256
		}
		if len(auditModel(m, w)) > 0 {
			return
		}
		got := m.body(w)
		h := got.HostConfig
		if h.Privileged || h.NetworkMode != "none" || !h.ReadonlyRootfs || len(h.Mounts) != 1 || !h.Mounts[0].ReadOnly || h.Mounts[0].Source != base.w.program.Path ||
			h.RestartPolicy.Name != "no" || len(h.CapDrop) != 1 || len(h.DeviceRequests) != 1 || len(h.DeviceRequests[0].DeviceIDs) != 1 ||
			h.DeviceRequests[0].DeviceIDs[0] != testUUID || got.User != nobody || len(got.Env) != 4 || h.Memory <= 0 || h.Memory > maxMemory ||
			got.Image != m.service.Image || strings.Join(got.Cmd, "\x00") != strings.Join(base.body.Cmd, "\x00") || got.Entrypoint[0] != binaryTarget {
			t.Errorf("passes the audit: %s\n%+v", content, got)
		}
	})
}

// FuzzOutput feeds the reader of a container's output: no panic, no more than the limits, and no difference by how the bytes arrive.
func FuzzOutput(f *testing.F) {
	frame := func(stream byte, text string) []byte {
		b := []byte{stream, 0, 0, 0}
		return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	f.Add(append(frame(1, "out"), frame(2, "err")...))
	f.Add(frame(1, strings.Repeat("x", 100)))
	f.Add(frame(3, "the engine's own"))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte("plain text"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		a, b := output{maxStdout: 64, maxStderr: 32}, output{maxStdout: 64, maxStderr: 32}
		err1, err2 := a.read(bytes.NewReader(stream)), b.read(iotest.OneByteReader(bytes.NewReader(stream)))
		if (err1 == nil) != (err2 == nil) || !bytes.Equal(a.stdout, b.stdout) || !bytes.Equal(a.stderr, b.stderr) {
			t.Errorf("%v %v, %q %q", err1, err2, a.stdout, b.stdout)
		}
		if len(a.stdout) > 64 || len(a.stderr) > 32 {
			t.Errorf("%d and %d bytes", len(a.stdout), len(a.stderr))
		}
	})
}

// Frames come apart by stream, in order, and the limits hold to the byte.
func TestOutput(t *testing.T) {
	stream := []byte("\x01\x00\x00\x00\x00\x00\x00\x03abc\x02\x00\x00\x00\x00\x00\x00\x02xy\x01\x00\x00\x00\x00\x00\x00\x01d\x03\x00\x00\x00\x00\x00\x00\x01z")
	o := output{maxStdout: 4, maxStderr: 3}
	if err := o.read(bytes.NewReader(stream)); err != nil || string(o.stdout) != "abcd" || string(o.stderr) != "xyz" {
		t.Errorf("%v %q %q", err, o.stdout, o.stderr)
	}
	o = output{maxStdout: 3, maxStderr: 3}
	if err := o.read(bytes.NewReader(stream)); err != errTooMuch || string(o.stdout) != "abc" {
		t.Errorf("%v %q", err, o.stdout)
	}
}

// What a tmpfs may be told.
func TestTmpfs(t *testing.T) {
	for text, ok := range map[string]bool{
		"/tmp:noexec,nosuid,nodev,size=1m":             true,
		"/tmp:rw,noexec,nosuid,nodev,size=1048576":     true,
		"/tmp:noexec,nosuid,nodev,size=256m,mode=0700": true,
		"/tmp":                                       false,
		"/tmp:":                                      false,
		"/tmp/x:noexec,nosuid,nodev,size=1m":         false,
		"/tmp:noexec,nosuid,nodev,size=257m":         false,
		"/tmp:noexec,nosuid,nodev,size=0":            false,
		"/tmp:noexec,nosuid,nodev,size=-1":           false,
		"/tmp:noexec,nosuid,nodev,size=10%":          false,
		"/tmp:noexec,nosuid,size=1m":                 false,
		"/tmp:noexec,nosuid,nodev,dev,size=1m":       false,
		"/tmp:exec,noexec,nosuid,nodev,size=1m":      false,
		"/tmp:noexec,nosuid,nodev,size=1m,mode=4777": false,
		"/tmp:noexec,nosuid,nodev,size=1m,uid=0":     false,
		"/tmp:noexec,nosuid,nodev,size=1m,size=9g":   false,
	} {
		if err := checkTmpfs(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Versions of the API are compared as numbers.
func TestOlderAPI(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1.9", "1.41", true}, {"1.41", "1.9", false}, {"1.41", "1.41", false}, {"1.41", "1.44", true}, {"2.0", "1.41", false},
		{"", "1.41", true}, {"x", "1.41", true}, {"1", "1.41", true}, {"1.-5", "1.41", true}, {"1.41", "", false}, {"1.41", "x.y", false},
	} {
		if got := olderAPI(c.a, c.b); got != c.want {
			t.Errorf("olderAPI(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
