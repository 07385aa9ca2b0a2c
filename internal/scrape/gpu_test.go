package scrape

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"testing"
)

const gpu0, gpu1, gpu2 = "GPU-c0ffee00-0000-4000-8000-000000000000", "GPU-c0ffee01-0000-4000-8000-000000000001", "GPU-c0ffee02-0000-4000-8000-000000000002/7"

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDCGM(t *testing.T) {
	body := golden(t, "dcgm.txt")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
	defer srv.Close()
	c := &Client{HTTP: srv.Client()}
	got, err := c.DCGM(context.Background(), srv.URL)
	want := []GPU{
		{UUID: gpu0, MemoryUsedBytes: Some(3000 << 20), MemoryTotalBytes: Some(143000 << 20), PowerMW: Some(119_265), EnergyMJ: Some(2_147_483_700),
			BusyPPM: Some(0), SMMHz: Some(1980), Xid: Some(0)},
		{UUID: gpu1}, // all of it blank
		{UUID: gpu2, MemoryUsedBytes: Some(512 << 20)},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	body = golden(t, "vllm.prom")
	if _, err := c.DCGM(context.Background(), srv.URL); !errors.Is(err, ErrNoGPU) {
		t.Errorf("a server's own metrics: %v", err)
	}
	body = []byte("<html>")
	if _, err := c.DCGM(context.Background(), srv.URL); err == nil || errors.Is(err, ErrNoGPU) {
		t.Errorf("a page: %v", err)
	}
}

func TestSMI(t *testing.T) {
	got, err := ParseSMI(golden(t, "smi.csv"))
	want := []GPU{
		{UUID: gpu0, MemoryUsedBytes: Some(2312 << 20), MemoryTotalBytes: Some(23034 << 20), PowerMW: Some(35_860), BusyPPM: Some(0), SMMHz: Some(1980)},
		{UUID: gpu1, MemoryUsedBytes: Some(0), MemoryTotalBytes: Some(23034 << 20), SMMHz: Some(210)},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	for _, bad := range []string{"", "No devices were found\n", "GPU-1, 2\n", "a,b,c,d,e,f\n", "Field \"x\" is not a valid field to query.\n"} {
		if _, err := ParseSMI([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestOllama(t *testing.T) {
	got, err := ParseOllama(golden(t, "ollama-ps.json"))
	if want := "server_memory_bytes 200000000 /api/ps size-size_vram\ndevice_memory_bytes 900000000 /api/ps size_vram\n"; err != nil || exposed(got) != want {
		t.Errorf("%s, %v; want %s", exposed(got), err, want)
	}
	if got, err := ParseOllama([]byte(`{"models":[]}`)); err != nil || exposed(got) != "server_memory_bytes 0 /api/ps size-size_vram\ndevice_memory_bytes 0 /api/ps size_vram\n" {
		t.Errorf("no model is loaded: %s, %v", exposed(got), err)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"models":3}`, `{"models":[{"size":1}]}`, `{"models":[{"size":1,"size_vram":2}]}`, `{"models":[{"size":9e99,"size_vram":2}]}`} {
		if r, err := ParseOllama([]byte(bad)); err == nil || len(r) != len(Names()) {
			t.Errorf("%q: %d readings, %v", bad, len(r), err)
		}
	}
}

func FuzzGPU(f *testing.F) {
	f.Add(golden(f, "dcgm.txt"))
	f.Add(golden(f, "smi.csv"))
	f.Add(golden(f, "ollama-ps.json"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dcgm, err := ParseDCGM(b)
		if err == nil && len(dcgm) == 0 {
			t.Error("no GPU and no error")
		}
		smi, err := ParseSMI(b)
		if err == nil && len(smi) == 0 {
			t.Error("no GPU and no error")
		}
		for _, g := range append(dcgm, smi...) {
			if g.BusyPPM.V > 1_000_000 || g.MemoryUsedBytes.V < 0 || g.PowerMW.V < 0 {
				t.Errorf("%+v", g)
			}
		}
		ParseOllama(b)
	})
}
