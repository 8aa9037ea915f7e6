package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"byre/migrations"
	"byre/sqlstore/bucket"
)

// copySuffix is the suffix of the copy, beside the database.
const copySuffix = ".standby"

// releaseTimeout bounds the writing of the lease at a stop.
const releaseTimeout = 10 * time.Second

// StandbyConfig is what Run needs.
type StandbyConfig struct {
	// URL is the destination, in S3.
	URL string
	S3  bucket.S3
	// Path is the database. Its directory exists.
	Path string
	// Duration is how long a holder that does nothing keeps the lease at most.
	Duration time.Duration
	Logger   *slog.Logger

	// Position returns the position of the database at path, or of a copy, which has no log; see package sqlite.
	Position func(ctx context.Context, path string, isCopy bool) (Position, error)
	// SetAside takes the database at path away, and Replace replaces it by the copy: see package sqlite.
	SetAside, Replace func(ctx context.Context, path, copied string, now time.Time) (kept string, err error)
	// Accept fails if this process must not go on from what another one has copied, whose lease it is or was. That
	// ends Run, before the database goes out of the way.
	Accept func(LeaseState) error
	// Follow runs while another process has the lease, until ctx ends. An error ends Run.
	Follow func(ctx context.Context, current func() StandbyStatus) error
	// Serve opens the database with the lineage State.Holder, calls Serve of the lease, and serves, until ctx ends.
	// complete says that the destination has all commits.
	Serve func(ctx context.Context, l *Lease) (complete bool, err error)
	// Lost ends the process at once.
	Lost func(err error)
}

// ErrHandedOver means that the process has stopped serving because it was asked to.
var ErrHandedOver = errors.New(
	"this server has handed over to the standby, as \"byre takeover\" asked: start it again, and it follows")

// StandbyStatus is what a process that follows knows.
type StandbyStatus struct {
	// State is the lease, which another process has.
	LeaseState
	// Copied is when the copy was last complete; zero before.
	Copied time.Time
}

// standby is the state of Run.
type standby struct {
	StandbyConfig
	object    *LeaseObject
	candidate *Candidate
	follower  *Follower
	// current is what Follow gets.
	current atomic.Pointer[StandbyStatus]
	// copied is that of the next Status, and reported when the copy was last told of.
	copied, reported time.Time
	// said is what was logged last, so that it is not repeated.
	said string
	// began is when Run began.
	began time.Time
	// lock is that of NewCandidate.
	lock string
	// own is the position of the database at Path; zero if there is none.
	own Position
	// seen is the lease as the current holder was first seen with.
	seen LeaseState
}

// RunStandby waits for the lease, and serves while it has it. It returns nil when ctx has ended, and ErrHandedOver.
func RunStandby(ctx context.Context, c StandbyConfig) (err error) {
	lock, err := migrations.AcquireFile(c.Path)
	if err != nil {
		return err
	}
	unlock := sync.OnceValue(lock.Close)
	defer func() { err = errors.Join(err, unlock()) }()
	c.Path = lock.Path
	object, err := LeaseOf(c.URL, c.S3)
	if err != nil {
		return err
	}
	if err := object.Probe(ctx); err != nil {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	s := &standby{StandbyConfig: c, object: object, began: time.Now(), lock: lock.Identity()}
	if s.candidate, err = NewCandidate(object, c.Duration, s.lock, nil); err != nil {
		return err
	}
	if s.own, err = c.Position(ctx, c.Path, false); err != nil {
		return fmt.Errorf("%w: move the database away, and this server goes on from the copy in the bucket", err)
	}
	if s.follower, err = NewFollower(c.URL, c.S3, c.Path+copySuffix); err != nil {
		return err
	}
	t, err := s.await(ctx)
	if err != nil {
		return errors.Join(err, s.follower.Close(), os.Remove(s.follower.Path()))
	}
	return s.serve(ctx, t, unlock)
}

// turn is a lease that was just taken, and what the process goes on from.
type turn struct {
	*Lease
	// isOwn says that it is its own database, and not the copy in folder.
	isOwn  bool
	folder string
}

// await follows until the lease is taken.
func (s *standby) await(ctx context.Context) (t *turn, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel(nil)
	poll := time.NewTicker(min(time.Second, s.Duration/15))
	defer poll.Stop()
	isFollowing := false
	for {
		state, exists, isFree, err := s.candidate.Look(ctx)
		isReached := err == nil && s.compareOwn(ctx, state)
		if err == nil && !isReached {
			if err := s.Accept(state); err != nil {
				return nil, err
			}
		}
		switch {
		case err != nil:
			s.say(ctx, slog.LevelWarn,
				"standby: the lease can't be read, and is tried again: see whether the bucket can be reached", "err", err)
		case isFree:
			if t, err = s.take(ctx, state, exists, isReached); t != nil {
				return t, nil
			}
		default:
			s.current.Store(&StandbyStatus{state, s.copied})
			if !isFollowing {
				isFollowing = true
				following.Go(func() {
					if err := s.Follow(ctx, func() StandbyStatus { return *s.current.Load() }); err != nil {
						cancel(err)
					}
				})
			}
			if !isReached && state.Folder != "" { // otherwise its own database has everything, or there is nothing
				err = s.follow(ctx, state)
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			s.say(ctx, slog.LevelWarn, "standby: the copy is not complete, and is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// say logs what was not just logged.
func (s *standby) say(ctx context.Context, level slog.Level, message string, args ...any) {
	if message != s.said {
		s.said = message
		s.Logger.Log(ctx, level, message, args...)
	}
}

// follow brings the copy up to what the holder has copied.
func (s *standby) follow(ctx context.Context, state LeaseState) error {
	if err := s.follower.CatchUp(ctx, state.Folder, false); err != nil {
		return err
	}
	s.copied = time.Now()
	s.current.Store(&StandbyStatus{state, s.copied})
	s.say(ctx, slog.LevelInfo, "standby: "+state.Holder+" serves, and this server has a copy, with which it takes over",
		"folder", state.Folder)
	kept, err := s.SetAside(ctx, s.Path, s.follower.Path(), time.Now())
	if err == nil {
		s.own = Position{}
	}
	s.sayKept(ctx, kept)
	if err != nil || time.Since(s.reported) < s.Duration/5 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Duration/5)
	defer cancel()
	at, err := s.position(ctx)
	if err == nil {
		err = s.object.WriteStandby(ctx,
			Standby{Name: s.candidate.Holder(), Folder: state.Folder, Position: at, Time: s.copied.UTC().Truncate(time.Second)})
	}
	if err == nil {
		s.reported = time.Now()
	}
	return err
}

// position returns that of the copy.
func (s *standby) position(ctx context.Context) (Position, error) {
	at, err := s.Position(ctx, s.follower.Path(), true)
	at.TXID = s.follower.Last()
	return at, err
}

// compareOwn reports whether this server's own database has everything that a new holder must have. It says, once, that
// it does not.
func (s *standby) compareOwn(ctx context.Context, state LeaseState) bool {
	if s.seen.Holder != state.Holder {
		s.seen = state
	}
	// If the process that writes to the database lives elsewhere, this one is a clone. A renewal that arrives late is of
	// the process before.
	isClone := s.own.Lineage == state.Holder && state.Renewals > s.seen.Renewals && state.Lock != s.lock
	if state.IsReachedBy(s.own) && !isClone {
		return true
	}
	if s.own != (Position{}) {
		s.Logger.WarnContext(ctx,
			"standby: the database of this server is not the one that was served last, but of before, or a snapshot or a clone of it: it serves nothing, and this server goes on from the copy in the bucket",
			"database", s.own.Revision, "acknowledged", state.Position.Revision)
		s.own = Position{}
	}
	return state.IsReachedBy(s.own)
}

func (s *standby) sayKept(ctx context.Context, kept string) {
	if kept != "" {
		s.Logger.WarnContext(ctx,
			"standby: the database of this server may have commits that were not copied before another one took over: it is kept, and serves nothing", "file", kept)
	}
}

// take takes the lease, which is free. It returns nil if it must not, or if another process was faster.
func (s *standby) take(ctx context.Context, state LeaseState, exists, isReached bool) (*turn, error) {
	t := &turn{isOwn: isReached, folder: state.Folder}
	at := s.own
	var err error
	switch {
	case !exists:
		if at, err = s.choose(ctx, t); err != nil || t.folder == "" && !t.isOwn {
			return nil, err
		}
	case !t.isOwn:
		at, err = s.catchUp(ctx, t.folder)
		if err != nil && !errors.Is(err, ErrHole) && !errors.Is(err, ErrEmpty) {
			return nil, err
		}
		if err != nil || !state.IsReachedBy(at) {
			s.say(ctx, slog.LevelError,
				"standby: "+state.Holder+
					" does not serve, and has commits that this server does not have: start it again, or delete the object lease.json of the bucket to go on without them",
				"required", state.Position.Revision, "copy", at.Revision, "database", s.own.Revision, "err", err)
			return nil, nil
		}
	}
	if t.Lease, err = s.candidate.Take(ctx, t.folder, at); errors.Is(err, ErrLeaseTaken) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// choose finds what to go on from if there is no lease: nobody ever had it, or an operator has deleted it, so that a
// server goes on with what it has. Without an error t has neither if this server must wait.
func (s *standby) choose(ctx context.Context, t *turn) (at Position, err error) {
	folders, err := s.follower.Folders(ctx)
	if err != nil {
		return at, err
	}
	t.isOwn = s.own != (Position{}) && s.own.Lineage == "" // it was put there to be served, and no process has
	switch {
	case len(folders) > 0 && time.Since(s.began) < s.Duration*4/5: // who had the lease that was deleted may not know yet
		t.isOwn = false
		return at, nil
	case len(folders) == 0 && s.own == (Position{}) && !s.copied.IsZero():
		s.say(ctx, slog.LevelError,
			"standby: the bucket was emptied, and this server has only what it has copied: start the one with the data, or else copy the file to the place of the database and start this one again",
			"file", s.follower.Path(), "database", s.Path)
		return at, nil
	case t.isOwn:
		return s.own, nil
	}
	for _, folder := range slices.Backward(folders) {
		at, err = s.catchUp(ctx, folder)
		switch {
		case errors.Is(err, ErrEmpty): // its process ended before
			continue
		case errors.Is(err, ErrHole):
			s.say(ctx, slog.LevelWarn, "standby: there is no lease, and this server goes on with what its copy has", "revision",
				at.Revision, "err", err)
		case err != nil:
			return at, err
		}
		if at.Revision > s.own.Revision {
			t.folder = folder
			return at, nil
		}
		break
	}
	t.isOwn = len(folders) == 0 || s.own != (Position{})
	return s.own, err
}

// catchUp brings the copy up to everything that a folder has.
func (s *standby) catchUp(ctx context.Context, folder string) (at Position, err error) {
	if folder == "" {
		return at, ErrEmpty
	}
	err = s.follower.CatchUp(ctx, folder, true)
	if err != nil && !errors.Is(err, ErrHole) {
		return at, err
	}
	at, positionErr := s.position(ctx)
	return at, errors.Join(err, positionErr)
}

// serve puts the database in place and serves it.
func (s *standby) serve(ctx context.Context, t *turn, unlock func() error) (err error) {
	serving, stop := context.WithCancelCause(ctx)
	renewing, end := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	beside.Go(func() {
		if err := t.Run(renewing, s.Logger); err != nil {
			s.Lost(err)
		}
	})
	beside.Go(func() {
		select {
		case <-renewing.Done():
		case <-t.HandOver():
			stop(ErrHandedOver)
		}
	})
	complete := false
	if err = s.prepare(serving, t); err == nil {
		if err = unlock(); err == nil {
			complete, err = s.Serve(serving, t.Lease)
		}
	}
	end()
	beside.Wait()
	lacks := t.State().Serving && !complete
	if !lacks || err == nil { // after a crash the lease ends by itself
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		released := t.Release(release, complete)
		if lacks { // without the bucket a stop is no failure
			s.Logger.WarnContext(ctx,
				"standby: the copy lacks the last commits: start this server again, for which the other one waits unless it could not be told", "err", released)
			released = nil
		}
		err = errors.Join(err, released)
	}
	if err == nil && ctx.Err() == nil && errors.Is(context.Cause(serving), ErrHandedOver) {
		return ErrHandedOver
	}
	return err
}

// prepare puts the database in place, so that what is committed to it follows on what the last holder has
// acknowledged.
func (s *standby) prepare(ctx context.Context, t *turn) error {
	if err := s.follower.Close(); err != nil {
		return err
	}
	if t.isOwn {
		return os.Remove(s.follower.Path())
	}
	s.Logger.InfoContext(ctx, "standby: this server takes over", "holder", s.candidate.Holder(), "folder", t.folder,
		"revision", t.State().Position.Revision)
	kept, err := s.Replace(ctx, s.Path, s.follower.Path(), time.Now())
	s.sayKept(ctx, kept)
	return err
}
