package mps_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cotenant/internal/gputest"
	"cotenant/internal/mps"
	"cotenant/internal/mps/query"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

const uuid = "GPU-11111111-2222-3333-4444-555555555555"

func start(t *testing.T, version int, static bool) (*mps.Daemon, *gputest.Machine, mps.Options, error) {
	t.Helper()
	m := gputest.Start(t, gputest.Host{MPS: &gputest.MPS{Version: version}, GPUs: []gputest.GPU{{UUID: uuid, CC: "9.0", SMs: 132}}})
	dir, err := os.MkdirTemp("/tmp", "mpst")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := mps.Options{Control: m.Path("/usr/bin/nvidia-cuda-mps-control"), Pipe: filepath.Join(dir, "p"), Log: filepath.Join(dir, "l"), Env: m.Env,
		Static: static, StartTimeout: 5 * time.Second}
	if err := os.Mkdir(o.Pipe, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := mps.Start(context.Background(), o)
	if err == nil {
		t.Cleanup(d.Kill)
	}
	return d, m, o, err
}

func TestClassic(t *testing.T) {
	d, _, o, err := start(t, 13000, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if len(d.Servers(ctx)) != 0 || !d.Alive() {
		t.Error("a server before any client")
	}
	d.SetPercentage(ctx, 25)
	if a := d.Ask(ctx, query.DefaultPercentage, 0); a.Text != "25.0" {
		t.Errorf("percentage %q", a.Text)
	}
	d.SetPriority(ctx, 1)
	if a := d.Ask(ctx, query.DefaultPriority, 0); a.Text != "1" {
		t.Errorf("priority %q", a.Text)
	}
	if _, a := d.Partitions(ctx); a.Kind != query.UnknownCommand {
		t.Errorf("lspart of 13000: %s %s", a.Kind, a.Text)
	}
	if _, err := d.Quit(ctx, 5*time.Second); err != nil || d.Alive() {
		t.Errorf("quit: %v, alive %v", err, d.Alive())
	}
	if entries, _ := os.ReadDir(o.Pipe); len(entries) != 0 {
		t.Errorf("%d files left in the pipe folder", len(entries))
	}
}

func TestStatic(t *testing.T) {
	d, _, _, err := start(t, 13010, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	id, said := d.AddPartition(ctx, uuid, 2)
	if !strings.Contains(id, "/") || !strings.HasSuffix(id, "=") {
		t.Errorf("id %q of %q", id, said.Text)
	}
	rows, _ := d.Partitions(ctx)
	if len(rows) != 2 || rows[1].ID != id || rows[1].UsedSMs.Or(0) != 16 {
		t.Errorf("%+v", rows)
	}
	if id, said := d.AddPartition(ctx, uuid, 14); id != "" || !strings.Contains(said.Text, "INVALID_RESOURCE_CONFIGURATION") {
		t.Errorf("too much: %q, %q", id, said.Text)
	}
	d.RemovePartition(ctx, uuid, id)
	if rows, _ := d.Partitions(ctx); len(rows) != 1 {
		t.Errorf("after removal %+v", rows)
	}
}

// A control binary without static partitioning prints its usage, exits with 0, and no daemon is there.
func TestStaticOnOldBinary(t *testing.T) {
	_, _, _, err := start(t, 13000, true)
	if !errors.Is(err, mps.ErrNotAnswering) || !strings.Contains(err.Error(), "Unrecognized option") {
		t.Errorf("%v", err)
	}
}

func TestRefusesFolder(t *testing.T) {
	for _, pipe := range []string{"relative", "/tmp/" + strings.Repeat("x", 80), os.TempDir()} {
		if _, err := mps.Start(context.Background(), mps.Options{Control: "/bin/true", Pipe: pipe}); err == nil {
			t.Errorf("%s was taken", pipe)
		}
	}
	if _, err := mps.Start(context.Background(), mps.Options{Control: "/nowhere/control", Pipe: t.TempDir(), Log: t.TempDir()}); err == nil {
		t.Error("a program that isn't there was started")
	}
}
