package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"byre/apiserver/server"
)

// newCompaction returns a compaction whose progress has a line for each request.
func newCompaction() (c *compaction, out, progress *bytes.Buffer) {
	out, progress = &bytes.Buffer{}, &bytes.Buffer{}
	c = &compaction{out: out, progress: newProgress(progress, "deleting history"), request: server.CompactRequest{Keep: time.Hour}}
	now := c.progress.start
	c.progress.clock = func() time.Time {
		now = now.Add(25 * time.Second)
		return now
	}
	return c, out, progress
}

// script returns a server that gives answers, one after the other, and the last one again.
func script(t *testing.T, answers ...server.CompactResult) func(server.CompactRequest) (server.CompactResult, error) {
	upTo := int64(0)
	return func(request server.CompactRequest) (server.CompactResult, error) {
		if request.UpTo != upTo {
			t.Errorf("request up to %d, want what the last answer has: %d", request.UpTo, upTo)
		}
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		upTo = answer.UpTo
		return answer, nil
	}
}

// byre compact shows how many changes are left, then how much space is returned, and says what the file keeps.
func TestCompact_ShowsItsProgress(t *testing.T) {
	t.Parallel()
	c, out, progress := newCompaction()
	const gib = 1 << 30
	err := c.repeat(t.Context(), script(t,
		server.CompactResult{UpTo: 9, Older: 1000, BeforeBytes: 6 * gib, Deleted: 400, SizeBytes: 6 * gib, UsedBytes: 4 * gib},
		server.CompactResult{UpTo: 9, Deleted: 600, IsDeleted: true, SizeBytes: 5 * gib, UsedBytes: gib, CompactedRevision: 9},
		server.CompactResult{UpTo: 9, IsDeleted: true, SizeBytes: 4 * gib, UsedBytes: gib, CompactedRevision: 9},
	))
	if err == nil {
		err = c.print()
	}
	if err != nil {
		t.Fatal(err)
	}
	const wantProgress = "deleting history [############                  ] 40%, 600 changes left, 16 a second, 2048.0 MiB free in the file\n" +
		"returning space: 1024.0 MiB returned, 4096.0 MiB left in the file\n" +
		"returning space: 2048.0 MiB returned, 3072.0 MiB left in the file\n"
	if progress.String() != wantProgress {
		t.Errorf("progress:\n%s\nwant\n%s", progress, wantProgress)
	}
	const wantOut = "compacted up to revision 9: 1000 changes are deleted; the database has 4096.0 MiB, 2048.0 MiB less\n" +
		"the file keeps 3072.0 MiB for what is written next, and the server returns it little by little: stop it and run \"byre compact\" again to return it at once\n"
	if out.String() != wantOut {
		t.Errorf("output:\n%s\nwant\n%s", out, wantOut)
	}
}

// A compaction that has nothing to delete but what is younger fails, and names the remedy of a full disk. One that is
// interrupted, or fails, says that it can go on.
func TestCompact_FailsWithWhatToDo(t *testing.T) {
	t.Parallel()
	c, _, _ := newCompaction()
	err := c.repeat(t.Context(), script(t, server.CompactResult{UpTo: 9, Younger: 70, IsDeleted: true, Done: true}))
	if err == nil || err.Error() != "nothing is deleted: the history has 70 changes, all younger than --keep 1h0m0s: --keep 0 deletes them too" {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	c, _, _ = newCompaction()
	err = c.repeat(ctx, func(server.CompactRequest) (server.CompactResult, error) {
		if c.deleted > 0 {
			cancel()
			return server.CompactResult{}, ctx.Err()
		}
		return server.CompactResult{UpTo: 9, Older: 100, Deleted: 40}, nil
	})
	if err == nil || err.Error() != "interrupted: 40 of about 100 changes are deleted: run the command again to go on" {
		t.Error(err)
	}

	c, _, _ = newCompaction()
	away := errors.New("the server has gone")
	err = c.repeat(t.Context(), func(server.CompactRequest) (server.CompactResult, error) {
		if c.deleted > 0 {
			return server.CompactResult{}, away
		}
		return server.CompactResult{UpTo: 9, Older: 100, Deleted: 40}, nil
	})
	if !errors.Is(err, away) || !strings.HasPrefix(err.Error(), "40 of about 100 changes are deleted: run the command again to go on: ") {
		t.Error(err)
	}
}
