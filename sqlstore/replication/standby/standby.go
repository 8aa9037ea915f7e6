package standby

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"byre/migrations/dbfile"
	"byre/sqlstore/backup/location"
	"byre/sqlstore/replication"
	"byre/sqlstore/replication/lease"
)

// copySuffix is the suffix of the copy, beside the database.
const copySuffix = ".standby"

// releaseTimeout bounds the writing of the lease at a stop.
const releaseTimeout = 10 * time.Second

// Config is what Run needs.
type Config struct {
	// URL is the destination, in S3.
	URL string
	S3  location.S3
	// Path is the database. Its directory exists.
	Path string
	// Duration is how long a holder that does nothing keeps the lease at most.
	Duration time.Duration
	Logger   *slog.Logger

	// SetAside takes the database at path away, and Replace replaces it by the copy: see package sqlite.
	SetAside, Replace func(ctx context.Context, path, copied string, now time.Time) (kept string, err error)
	// Accept fails if this process must not go on from what another one has copied, whose lease it is or was. That
	// ends Run, before the database goes out of the way.
	Accept func(lease.State) error
	// Follow runs while another process has the lease, until ctx ends. An error ends Run.
	Follow func(ctx context.Context, current func() Status) error
	// Serve opens the database, calls Serve of the lease, and serves, until ctx ends. complete says that the destination
	// has all commits.
	Serve func(ctx context.Context, l *lease.Lease) (complete bool, err error)
	// Lost ends the process at once.
	Lost func(err error)
}

// ErrHandedOver means that the process has stopped serving because it was asked to.
var ErrHandedOver = errors.New("this server has handed over to the standby, as \"byre takeover\" asked: start it again, and it follows")

// Status is what a process that follows knows.
type Status struct {
	// State is the lease, which another process has.
	lease.State
	// Copied is when the copy was last complete; zero before.
	Copied time.Time
}

// standby is the state of Run.
type standby struct {
	Config
	candidate *lease.Candidate
	follower  *replication.Follower
	holders   *holders
	// current is what Follow gets.
	current atomic.Pointer[Status]
	// copied is that of the next Status.
	copied time.Time
	// said is what was logged last, so that it is not repeated.
	said string
	// began is when Run began.
	began time.Time
	// isAside is true if the database is out of the way of the copy, which has been complete once.
	isAside bool
}

// Run waits for the lease, and serves while it has it. It returns nil when ctx has ended, and ErrHandedOver.
func Run(ctx context.Context, c Config) (err error) {
	lock, err := dbfile.Acquire(c.Path)
	if err != nil {
		return err
	}
	unlock := sync.OnceValue(lock.Close)
	defer func() { err = errors.Join(err, unlock()) }()
	c.Path = lock.Path
	object, err := replication.LeaseOf(c.URL, c.S3)
	if err != nil {
		return err
	}
	if err := object.Probe(ctx); err != nil {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	s := &standby{Config: c, began: time.Now()}
	if s.candidate, err = lease.NewCandidate(object, c.Duration, nil); err != nil {
		return err
	}
	if s.holders, err = readHolders(c.Path); err != nil {
		return err
	}
	if s.follower, err = replication.NewFollower(c.URL, c.S3, c.Path+copySuffix); err != nil {
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
	*lease.Lease
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
		state, exists, isFree, err := s.candidate.Look(ctx, s.holders.has)
		if err == nil && !s.holders.has(state.Holder) {
			if err := s.Accept(state); err != nil {
				return nil, err
			}
		}
		// A process that has crashed keeps the lease for nothing. One that has handed over does not get it back.
		isFree = isFree || err == nil && !state.HandOver && s.holders.hasEnded(state.Holder)
		switch {
		case err != nil:
			s.say(ctx, slog.LevelWarn, "standby: the lease can't be read, and is tried again: see whether the bucket can be reached", "err", err)
		case isFree:
			if t, err = s.take(ctx, state, exists); t != nil {
				return t, nil
			}
		default:
			s.current.Store(&Status{state, s.copied})
			if !isFollowing {
				isFollowing = true
				following.Go(func() {
					if err := s.Follow(ctx, func() Status { return *s.current.Load() }); err != nil {
						cancel(err)
					}
				})
			}
			err = s.follow(ctx, state)
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
func (s *standby) follow(ctx context.Context, state lease.State) error {
	if s.holders.has(state.Holder) || state.Folder == "" {
		return nil // its own database is newer, or there is nothing
	}
	if err := s.follower.CatchUp(ctx, state.Folder, false); err != nil {
		return err
	}
	s.copied = time.Now()
	s.current.Store(&Status{state, s.copied})
	s.say(ctx, slog.LevelInfo, "standby: "+state.Holder+" serves, and this server has a copy, with which it takes over", "folder", state.Folder)
	if s.isAside {
		return nil
	}
	kept, err := s.SetAside(ctx, s.Path, s.follower.Path(), time.Now())
	s.isAside = err == nil
	s.sayKept(ctx, kept)
	return err
}

func (s *standby) sayKept(ctx context.Context, kept string) {
	if kept != "" {
		s.Logger.WarnContext(ctx, "standby: the database of this server may have commits that were not copied before another one took over: it is kept, and serves nothing", "file", kept)
	}
}

// take takes the lease, which is free. It returns nil if it must not, or if another process was faster.
func (s *standby) take(ctx context.Context, state lease.State, exists bool) (*turn, error) {
	_, statErr := os.Stat(s.Path)
	hasDatabase := !errors.Is(statErr, fs.ErrNotExist)
	t := &turn{folder: state.Folder}
	if exists {
		t.isOwn = s.holders.has(state.Holder) && (hasDatabase || state.Folder == "")
	} else {
		var err error
		if t.folder, err = s.follower.LastFolder(ctx); err != nil {
			return nil, err
		}
		t.isOwn = t.folder == "" || hasDatabase && len(s.holders.names) == 0
		if t.folder != "" && time.Since(s.began) < s.Duration*4/5 { // who had the lease that was deleted may not know yet
			return nil, nil
		}
	}
	switch {
	case exists && !t.isOwn && (state.Lacks || state.Folder == ""): // a holder without a folder goes on from its own database
		s.say(ctx, slog.LevelError, "standby: "+state.Holder+" does not serve, and has commits that are in no copy: start it again, or delete the object lease.json of the bucket to go on without them")
		return nil, nil
	case !exists && !hasDatabase && t.folder == "" && !s.copied.IsZero():
		s.say(ctx, slog.LevelError, "standby: the bucket was emptied, and this server has only what it has copied: start the one with the data, or else copy the file to the place of the database and start this one again",
			"file", s.follower.Path(), "database", s.Path)
		return nil, nil
	case t.isOwn && !exists:
		t.folder = ""
	case !t.isOwn: // without a copy this server would keep the lease from one that can serve
		if err := s.follower.CatchUp(ctx, t.folder, false); err != nil {
			return nil, err
		}
	}
	// A crash from here on leaves the server's own database to the new name too. The copy is not what an earlier try has
	// written the name for.
	if err := s.holders.include(s.candidate.Holder(), t.isOwn); err != nil {
		return nil, err
	}
	var err error
	if t.Lease, err = s.candidate.Take(ctx, t.folder); errors.Is(err, lease.ErrTaken) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t, nil
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
			s.Logger.WarnContext(ctx, "standby: the copy lacks the last commits: start this server again, for which the other one waits unless it could not be told", "err", released)
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
// copied.
func (s *standby) prepare(ctx context.Context, t *turn) error {
	if t.isOwn {
		if err := errors.Join(s.follower.Close(), os.Remove(s.follower.Path())); err != nil {
			return err
		}
		return s.holders.set(s.candidate.Holder())
	}
	s.Logger.InfoContext(ctx, "standby: this server takes over", "holder", s.candidate.Holder(), "folder", t.folder)
	for begin := time.Now(); ; {
		err := s.follower.CatchUp(ctx, t.folder, true)
		if err == nil {
			break
		}
		if time.Since(begin) > s.Duration { // the other server may have what this one lacks
			return errors.Join(err, s.follower.Close(), os.Remove(s.follower.Path()))
		}
		s.say(ctx, slog.LevelError, "standby: the copy is not complete, and is tried again before this server takes over", "err", err)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), s.follower.Close())
		case <-time.After(time.Second):
		}
	}
	if err := s.follower.Close(); err != nil {
		return err
	}
	kept, err := s.Replace(ctx, s.Path, s.follower.Path(), time.Now())
	if err != nil {
		return err
	}
	s.sayKept(ctx, kept)
	return s.holders.set(s.candidate.Holder())
}
