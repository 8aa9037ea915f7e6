package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// body returns a Make for a representation of a size. It counts its calls.
func body(size int, made *atomic.Int64) MakeRepresentation {
	return func(context.Context) (Representation, error) {
		made.Add(1)
		return Representation{Body: make([]byte, size)}, nil
	}
}

func TestCache_MakesOnceForAllWhoAskAtTheSameTime(t *testing.T) {
	t.Parallel()
	c, format, set := NewRepresentations(0), &Format{Name: "f"}, &RepresentationSet{}
	var made atomic.Int64
	entered, release := make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context) (Representation, error) {
		close(entered)
		<-release
		return body(10, &made)(ctx)
	}
	var all sync.WaitGroup
	all.Go(func() { _, _ = c.GetOrMake(t.Context(), set, format, slow) })
	<-entered
	for range 20 {
		all.Go(func() {
			if r, err := c.GetOrMake(t.Context(), set, format, body(10, &made)); err != nil || len(r.Body) != 10 {
				t.Error(r, err)
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GetOrMake(gone, set, format, body(10, &made)); !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone gets %v", err)
	}
	close(release)
	all.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
}

func TestCache_AFailureIsNotKept(t *testing.T) {
	t.Parallel()
	c, format, set := NewRepresentations(0), &Format{}, &RepresentationSet{}
	failure := errors.New("failed")
	_, err := c.GetOrMake(t.Context(), set, format, func(context.Context) (Representation, error) {
		return Representation{}, failure
	})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = c.GetOrMake(t.Context(), set, format, func(context.Context) (Representation, error) { panic("x") })
	}()
	var made atomic.Int64
	if r, err := c.GetOrMake(t.Context(), set, format, body(1, &made)); err != nil || len(r.Body) != 1 {
		t.Error(r, err)
	}
}

func TestCache_StaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	const size, budget = 1000, 100_000
	c, format := NewRepresentations(budget), &Format{}
	sets := make([]RepresentationSet, 1000)
	var made atomic.Int64
	for range 3 {
		for i := range sets {
			if _, err := c.GetOrMake(t.Context(), &sets[i], format, body(size, &made)); err != nil {
				t.Fatal(err)
			}
			if n := c.Bytes(); n > budget {
				t.Fatalf("%d bytes", n)
			}
			c.Get(&sets[7], format, nil) // in use
		}
	}
	inMemory := 0
	for i := range sets {
		if c.Get(&sets[i], format, nil) != nil {
			inMemory++
		}
		if n := sets[i].Size(format); n != size {
			t.Fatalf("size is %d", n)
		}
	}
	if inMemory < budget/(size+overhead)-1 || inMemory > budget/size {
		t.Errorf("%d are in memory", inMemory)
	}
	if c.Get(&sets[7], format, nil) == nil {
		t.Error("what is in use has left memory")
	}
}

func TestCache_DropsWhatNobodyReads(t *testing.T) {
	t.Parallel()
	c, format := NewRepresentations(0), &Format{}
	read, unread := &RepresentationSet{}, &RepresentationSet{}
	var made atomic.Int64
	for _, set := range []*RepresentationSet{read, unread, {}} {
		if _, err := c.GetOrMake(t.Context(), set, format, body(1000, &made)); err != nil {
			t.Fatal(err)
		}
		c.Get(set, format, nil)
	}
	runtime.GC()
	c.DropUnused() // all have been read
	c.Get(read, format, nil)
	c.DropUnused()
	if n := c.Bytes(); c.Get(read, format, nil) == nil || c.Get(unread, format, nil) != nil || n != 1000+overhead {
		t.Errorf("%d bytes are in memory", n)
	}
	if r, err := c.GetOrMake(t.Context(), unread, format, body(10, &made)); err != nil || len(r.Body) != 10 ||
		made.Load() != 4 {
		t.Error(r, err)
	}
}

func TestCache_WhatBelongsToGoneRecordsDoesNotCount(t *testing.T) {
	t.Parallel()
	c, format := NewRepresentations(1_000_000), &Format{}
	var made atomic.Int64
	for range 1000 {
		if _, err := c.GetOrMake(t.Context(), &RepresentationSet{}, format, body(10_000, &made)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	c.mu.Lock()
	c.sweep()
	c.mu.Unlock()
	if n := c.Bytes(); n > 50_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestSet_ForgetsFormsWhenThereAreTooMany(t *testing.T) {
	t.Parallel()
	c, set := NewRepresentations(0), &RepresentationSet{}
	var made atomic.Int64
	for i := range 100 {
		if _, err := c.GetOrMake(t.Context(), set, &Format{Name: fmt.Sprint(i)}, body(10, &made)); err != nil {
			t.Fatal(err)
		}
	}
	if n := set.first.Load().number; n >= maxForms {
		t.Errorf("%d formats", n)
	}
}

func TestCache_UnderConcurrentUse(t *testing.T) {
	t.Parallel()
	c := NewRepresentations(20_000)
	formats := []*Format{{}, {}, {}}
	sets := make([]RepresentationSet, 50)
	var made atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 2000 {
				set, format := &sets[(i*7+worker)%len(sets)], formats[i%len(formats)]
				if r := c.Get(set, format, nil); r == nil {
					if r, err := c.GetOrMake(t.Context(), set, format, body(500, &made)); err != nil || len(r.Body) != 500 {
						t.Error(r, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	if n := c.Bytes(); n > 20_000 {
		t.Errorf("%d bytes", n)
	}
}

// A scan of more than the budget does not evict what others use. When the same list is scanned
// again, the cache still has a part of it.
func TestScan_LeavesWhatIsThere(t *testing.T) {
	t.Parallel()
	const size, budget = 1000, 100_000
	c, format := NewRepresentations(budget), &Format{}
	used, list := make([]RepresentationSet, 20), make([]RepresentationSet, 1000)
	var made atomic.Int64
	for i := range used {
		if _, err := c.GetOrMake(t.Context(), &used[i], format, body(size, &made)); err != nil {
			t.Fatal(err)
		}
	}
	scan := func() int64 {
		before := made.Load()
		for i := range list {
			if i%100 == 0 { // other readers continue
				for j := range used {
					c.Get(&used[j], format, nil)
				}
			}
			if r, err := c.Scan(t.Context(), &list[i], format, body(size, &made)); err != nil || len(r.Body) != size {
				t.Fatal(r, err)
			}
		}
		return made.Load() - before
	}
	scan()
	kept := 0
	for i := range used {
		if c.Get(&used[i], format, nil) != nil {
			kept++
		}
	}
	if kept < 18 {
		t.Errorf("of 20 in use %d are left", kept)
	}
	if n := scan(); n > 970 {
		t.Errorf("%d of 1000 had to be made again, when 80 fit", n)
	}
	if n := c.Bytes(); n > budget {
		t.Errorf("%d bytes", n)
	}
}

// The representations of a scan take the place of those whose records were freed: when the list
// is scanned again, all of it is in the cache.
func TestScan_TakesThePlaceOfWhatIsFreed(t *testing.T) {
	t.Parallel()
	const size, budget = 1000, 100_000
	c, format := NewRepresentations(budget), &Format{}
	var made atomic.Int64
	scan := func(list []RepresentationSet) {
		for i := range list {
			if _, err := c.Scan(t.Context(), &list[i], format, body(size, &made)); err != nil {
				t.Fatal(err)
			}
		}
	}
	scan(make([]RepresentationSet, 80))
	runtime.GC()
	list := make([]RepresentationSet, 50)
	scan(list)
	before := made.Load()
	if scan(list); made.Load() > before {
		t.Errorf("%d of 50 had to be made again, when 80 fit", made.Load()-before)
	}
}

// A representation is made again after it has expired. The cache counts it once, however
// often that happens, and evicts it as others.
func TestCache_MakesAgainWhatHasExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, budget = 1000, 10_000
		c, format, set := NewRepresentations(budget), &Format{}, &RepresentationSet{}
		var made atomic.Int64
		expiring := func(ctx context.Context) (Representation, error) {
			r, err := body(size+int(made.Load()%3), &made)(ctx)
			r.Expires = c.After(time.Minute)
			return r, err
		}
		for want := range int64(50) {
			for range 3 {
				if _, err := c.GetOrMake(t.Context(), set, format, expiring); err != nil {
					t.Fatal(err)
				}
			}
			if n := made.Load(); n != want+1 {
				t.Fatalf("made %d times in %d minutes", n, want)
			}
			if n := c.Bytes(); n > size+overhead+2 {
				t.Fatalf("%d bytes are counted", n)
			}
			time.Sleep(time.Minute + time.Second)
			if c.Get(set, format, nil) != nil {
				t.Fatal("it has not expired")
			}
		}
		others := make([]RepresentationSet, 20)
		for i := range others {
			if _, err := c.GetOrMake(t.Context(), &others[i], format, body(size, &made)); err != nil {
				t.Fatal(err)
			}
		}
		if n := set.find(format).queued; n != nil || c.Bytes() > budget {
			t.Errorf("of an evicted one %v bytes are counted, of all %d", n, c.Bytes())
		}
	})
}
