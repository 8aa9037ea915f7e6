package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"byre/sqlstore/bucket"
	"byre/sqlstore/storetest"

	"byre/sqlstore/replication"
)

// TestTakeOver_NeedsAStandbyThatHasACopy plays the two servers. Without a standby that follows the copy of the holder, the
// holder is not asked to stop. With one, that one takes the lease.
func TestTakeOver_NeedsAStandbyThatHasACopy(t *testing.T) {
	storetest.ServeS3Here(t, storetest.NewS3(t, "copies"))
	object, err := replication.LeaseOf(sharedURL, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	newCandidate := func() *replication.Candidate {
		c, err := replication.NewCandidate(object, 10*time.Second, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	take := func(ctx context.Context, c *replication.Candidate) *replication.Lease {
		if _, _, isFree, err := c.Look(ctx); err != nil || !isFree {
			return nil
		}
		l, err := c.Take(ctx, "folder", replication.Position{})
		if err == nil {
			err = l.Serve(ctx, "keys", func() (int64, uint64) { return 7, 7 })
		}
		if err != nil {
			t.Error(err)
		}
		return l
	}
	held := take(t.Context(), newCandidate())
	var out bytes.Buffer
	command := &cobra.Command{}
	command.SetOut(&out)
	command.SetErr(&out)
	standby := newCandidate()
	told := replication.Standby{Name: standby.Holder(), Folder: "folder", Position: replication.Position{Revision: 7, TXID: 7}}
	if err := object.WriteStandby(t.Context(), told); err != nil { // it told that once, and is gone
		t.Fatal(err)
	}
	err = takeOver(t.Context(), command, object, true)
	if err == nil || !strings.Contains(err.Error(), standby.Holder()+" had revision 7") || !strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("without a standby: %v", err)
	}
	if s, _, err := object.Read(t.Context()); err != nil || s.HandOverTo != "" || s.Released {
		t.Errorf("the holder was asked to stop: %+v, %v", s, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	var playing sync.WaitGroup
	playing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ { // the standby
			told.Position.Revision++
			_ = object.WriteStandby(ctx, told)
			if take(ctx, standby) != nil {
				return
			}
		}
	})
	playing.Go(func() {
		for ctx.Err() == nil { // the holder
			s, _, err := object.Read(ctx)
			if err == nil && s.HandOverTo == standby.Holder() {
				_ = held.Release(ctx, true) // its first write finds that the object was changed
				return
			}
		}
	})
	if err := takeOver(ctx, command, object, true); err != nil || !strings.Contains(out.String(), standby.Holder()+" serves\n") {
		t.Errorf("with a standby: %v, %s", err, out.String())
	}
	playing.Wait()
}
