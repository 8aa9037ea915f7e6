package pki

import (
	"context"
	"errors"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
)

const (
	// replacing is how long the two files of a pair may contradict each other: a program that
	// replaces both replaces one first.
	replacing = 2 * time.Second
	// reloadPause is the time between two attempts to load such a pair.
	reloadPause = 50 * time.Millisecond
	// reloadLater is the time until the next attempt to load a pair that stays wrong.
	reloadLater = time.Minute
)

// Follow loads the pair again whenever one of its two files changes, until ctx ends.
//
// Upstream's Run of the pair would log an error at each renewal, because it reads both files as
// soon as one of them is replaced, and finds a key of another certificate. Follow logs an error
// if the files are wrong for longer than replacing. The old pair is in use meanwhile.
func Follow(ctx context.Context, pair dynamiccertificates.ControllerRunner, certFile, keyFile string) {
	// With a context that has ended, Run only ends the queue that the pair's constructor started.
	defer pair.Run(ctx, 1)
	isLogged := false
	for ctx.Err() == nil {
		// The watch begins before the files are read, so that no change is missed. It is made
		// anew each time, because what it watches are the files that are replaced.
		watcher, watchErr := watchFiles(certFile, keyFile)
		var err error
		_ = wait.PollUntilContextTimeout(ctx, reloadPause, replacing, true, func(ctx context.Context) (bool, error) {
			err = pair.RunOnce(ctx)
			return err == nil, nil
		})
		if err != nil && !isLogged && ctx.Err() == nil {
			klog.ErrorS(err, "A certificate and its key can't be loaded, and the ones of before are used: put a pair there", "certificate", certFile, "key", keyFile)
		}
		isLogged = err != nil
		var again <-chan time.Time
		if err != nil || watchErr != nil { // the kernel's limit of watches, for example
			again = time.After(reloadLater)
		}
		waitForChange(ctx, watcher, again)
	}
}

// watchFiles returns a watch of the files, or nil and an error.
func watchFiles(names ...string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := watcher.Add(name); err != nil {
			return nil, errors.Join(err, watcher.Close())
		}
	}
	return watcher, nil
}

// waitForChange returns, and ends the watch, when a file has changed, at the time again or when
// ctx ends.
func waitForChange(ctx context.Context, watcher *fsnotify.Watcher, again <-chan time.Time) {
	var events chan fsnotify.Event
	var errs chan error
	if watcher != nil {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	select {
	case <-ctx.Done():
	case <-events:
	case <-errs:
	case <-again:
	}
}
