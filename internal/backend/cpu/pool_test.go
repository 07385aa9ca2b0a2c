package cpu

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestPoolEveryPieceOnce runs many operations of many sizes and counts.
func TestPoolEveryPieceOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		p := newPool(threads)
		for round := range 2000 {
			n := round % 37
			counts := make([]atomic.Int32, n)
			var busy [8]atomic.Bool
			p.run(n, jobFunc(func(thread, i int) {
				if !busy[thread].CompareAndSwap(false, true) {
					t.Errorf("thread %d does two pieces at once", thread)
				}
				counts[i].Add(1)
				busy[thread].Store(false)
			}))
			for i := range counts {
				if c := counts[i].Load(); c != 1 {
					t.Fatalf("%d threads, %d pieces: piece %d ran %d times when run returned", threads, n, i, c)
				}
			}
		}
		p.close()
	}
}

// TestPoolSharesWork checks that workers take pieces at all: two pieces that wait for each other need two threads.
func TestPoolSharesWork(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	p := newPool(2)
	defer p.close()
	var arrived atomic.Int32
	p.run(2, jobFunc(func(_, _ int) {
		arrived.Add(1)
		for deadline := time.Now().Add(20 * time.Second); arrived.Load() < 2; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Error("no second thread took a piece for 20 s")
				return
			}
		}
	}))
}

// TestPoolParks checks that idle workers stop using the processor, and come back.
func TestPoolParks(t *testing.T) {
	p := newPool(3)
	defer p.close()
	for range 3 {
		p.run(8, jobFunc(func(_, _ int) {}))
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if p.parked[1].asleep.Load() && p.parked[2].asleep.Load() {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("workers still spin after 20 s")
			}
		}
	}
}

// TestPoolOneProcessor checks that operations end where only one goroutine can run at a time.
func TestPoolOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := newPool(4)
	defer p.close()
	var sum atomic.Int64
	for range 500 {
		p.run(10, jobFunc(func(_, i int) { sum.Add(int64(i)) }))
	}
	if sum.Load() != 500*45 {
		t.Fatalf("sum is %d", sum.Load())
	}
}

// TestPoolCloseAtOnce closes pools whose workers have hardly started, spin or sleep.
func TestPoolCloseAtOnce(t *testing.T) {
	for i := range 200 {
		p := newPool(4)
		if i%2 == 0 {
			p.run(3, jobFunc(func(_, _ int) {}))
		}
		if i%50 == 0 {
			time.Sleep(2 * spinFor)
		}
		p.close()
	}
}

func BenchmarkPool(b *testing.B) {
	p := newPool(runtime.GOMAXPROCS(0))
	defer p.close()
	j := jobFunc(func(_, _ int) {})
	for b.Loop() {
		p.run(8, j)
	}
}
