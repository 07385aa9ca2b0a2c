package kernels

import (
	"slices"
	"testing"
)

func TestAttentionPlans(t *testing.T) {
	m, err := ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []GPU{{80, 108}, {90, 132}, {120, 170}} {
		room := uint32(99 << 10)
		if g.Hopper() {
			room = 227 << 10
		}
		for _, h := range []Heads{{14, 2, 64}, {32, 8, 128}, {9, 3, 64}, {4, 2, 64}, {64, 4, 128}} {
			for _, p := range []Plan{DecodeAttention(g, h, 64, 100000), DecodeAttention(g, h, 1, 1), DecodeAttentionRoPE(g, h, 64, 100000), DecodeAttentionRoPE(g, h, 1, 1), PrefillAttention(g, h, 3, 704), PrefillAttention(g, h, PrefillSequences, 704), PrefillAttention(g, h, 1, 2)} {
				i := slices.IndexFunc(m.Modules, func(i ModuleInfo) bool { return i.Name == p.Module })
				if i < 0 || !slices.Contains(m.Modules[i].Kernels, p.Kernel) || slices.Contains(p.Grid[:], 0) || p.Shared > room {
					t.Errorf("%v %v: %+v", g, h, p)
				}
			}
		}
	}
	if p := DecodeAttention(GPU{90, 132}, Heads{14, 2, 64}, 5, 712); p.Grid != [3]uint32{3, 2, 5} {
		t.Errorf("grid %v", p.Grid)
	}
	if p := DecodeAttentionRoPE(GPU{90, 132}, Heads{14, 2, 64}, 64, 712); p.Grid != [3]uint32{1, 2, 64} || p.Kernel != "attend_rope_teams_64" {
		t.Errorf("64 sequences: %+v", p)
	}
	if n := DecodePartial(Heads{14, 2, 64}, 5); n != 5*2*16*8*66*4 {
		t.Errorf("%d bytes", n)
	}
}

func TestCheckAttention(t *testing.T) {
	for _, c := range []struct {
		h    Heads
		page int
		good bool
	}{
		{Heads{14, 2, 64}, 16, true}, {Heads{32, 8, 128}, 64, true}, {Heads{14, 2, 80}, 16, false}, {Heads{14, 4, 64}, 16, false},
		{Heads{14, 0, 64}, 16, false}, {Heads{14, 2, 64}, 8, false}, {Heads{14, 2, 64}, 24, false}, {Heads{1, 2, 64}, 16, false}, {Heads{2, 2, 64}, 0, false},
	} {
		if err := CheckAttention(c.h, c.page); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
