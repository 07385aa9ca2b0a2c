package inspect

import (
	"context"
	"testing"
	"time"

	"cotenant/internal/observe"
)

// A source that hangs in this process itself, as a read of a dead network file system does, is left behind; what the others
// said is kept, and what it says later goes nowhere.
func TestStuckSourceIsLeftBehind(t *testing.T) {
	release := make(chan struct{})
	late := make(chan struct{})
	f := &Facts{WallUS: make(map[string]int64)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	stuck := source("pci", func(f *Facts) *PCI { return &f.PCI }, func(p *PCI) *Source { return &p.Source }, func(context.Context, time.Duration) PCI {
		<-release
		defer close(late)
		return PCI{Source: Source{Status: observe.SupportedProven}}
	})
	quick := source("cdi", func(f *Facts) *CDI { return &f.CDI }, func(c *CDI) *Source { return &c.Source }, func(context.Context, time.Duration) CDI {
		return CDI{Source: Source{Status: observe.SupportedProven}}
	})
	start := time.Now()
	f.collect(ctx, start, []job{stuck, quick}, time.Second)
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
	close(release)
	<-late
	if f.PCI.Status != observe.Hung || f.PCI.Reason == "" || f.CDI.Status != observe.SupportedProven {
		t.Errorf("%+v, %+v", f.PCI.Source, f.CDI.Source)
	}
}
