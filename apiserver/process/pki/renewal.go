package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// RenewableNames are the names of certificates that Renew accepts.
func RenewableNames() []string {
	return []string{nameAdmin, nameServing, nameKubeletClient, nameFrontProxy}
}

// CheckRenewable fails if Renew does not accept a name.
func CheckRenewable(name string) error {
	switch {
	case name == nameCA || name == nameFrontProxyCA:
		return fmt.Errorf("%s is not renewed: all that it has signed would no longer be trusted", name)
	case !slices.Contains(RenewableNames(), name):
		return fmt.Errorf("there is no certificate %q: name one of %s, or all", name, strings.Join(RenewableNames(), ", "))
	}
	return nil
}

// Renew issues the certificate of a name anew. It gets a new key, keeps its DNS names
// and IP addresses, and is valid for a year from c.Now. Renew uses Dir, Kubeconfig and
// Now of c. It does not renew CAs and the service account key, because everything that
// they have signed would no longer be trusted. A running server reloads the files.
func Renew(c Config, name string) error {
	if err := CheckRenewable(name); err != nil {
		return err
	}
	if !exists(c.Dir) {
		return fmt.Errorf("%s does not exist: name the directory of a server that has been started", c.Dir)
	}
	k, unlock, err := open(c)
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.loadCAs(); err != nil {
		return err
	}
	if err := k.renew(name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

const (
	// renewInterval is the time between two checks of a running server. It is short against
	// renewBefore.
	renewInterval = time.Hour
	// clockInterval is the time between two looks at the wall clock. A ticker measures neither the
	// time that a machine sleeps nor that by which its clock is set.
	clockInterval = time.Minute
)

// Run renews the certificates of a running server, at the time at which Ensure would renew
// them, until ctx ends. c.Now is the time of the call of Ensure before; Run sets it by the wall
// clock now, and calls report after each check. The server reloads the files.
func Run(ctx context.Context, c Config, now func() time.Time, report func(Report, error)) error {
	tick := time.NewTicker(clockInterval)
	defer tick.Stop()
	checked := c.Now.Round(0) // without the monotonic reading
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		c.Now = now().Round(0)
		if passed := c.Now.Sub(checked); passed < 0 || passed >= renewInterval {
			checked = c.Now
			report(renewExpiring(c))
		}
	}
}

// renewExpiring does what Ensure does to existing certificates. It makes no CA and no service
// account key, whose loss a running server must not hide.
func renewExpiring(c Config) (Report, error) {
	k, unlock, err := open(c)
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	if err := k.loadCAs(); err != nil {
		return Report{}, err
	}
	if err := errors.Join(k.ensureLeaves(), k.checkServing()); err != nil {
		return k.report, err
	}
	return k.report, errors.Join(k.report.Failed, k.ensureKubeconfig())
}

// loadCAs loads the CAs. Unlike ensureCAs it does not create missing ones.
func (k *ensurer) loadCAs() error {
	for _, path := range []string{k.files.CACert, k.files.FrontProxyCA} {
		if !exists(path) {
			return fmt.Errorf("%s does not exist: name the directory of a server that has been started", path)
		}
	}
	return k.ensureCAs()
}

func (k *ensurer) renew(name string) error {
	if name == nameAdmin {
		return k.renewKubeconfig()
	}
	k.config.Hosts = nil // those of the certificate stay
	l := k.leaf(name)
	current, err := readPair(l.certPath, l.keyPath)
	switch {
	case err != nil:
		return err
	case current.cert == nil:
		return fmt.Errorf("%s does not exist: \"byre serve\" makes it when it starts", l.certPath)
	case !k.issued.owns(l.certPath, current):
		return notIssued(filepath.Base(l.certPath) + " and " + filepath.Base(l.keyPath))
	case l.by.signer == nil:
		return noKey(l.by)
	}
	return k.issue(l, current)
}

func notIssued(files string) error {
	return fmt.Errorf(
		"byre did not issue it: renew it where it was issued and replace %s, or move them away, and the next start issues others", files)
}

// renewKubeconfig renews the administrator's certificate. It changes nothing else in
// the file.
func (k *ensurer) renewKubeconfig() error {
	cert, err := readAdminCert(k.config.Kubeconfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s has no certificate of %s: \"byre serve\" makes the file when it starts", k.config.Kubeconfig,
			adminName)
	case err != nil:
		return err
	case !isAdmin(cert):
		return fmt.Errorf("byre did not issue it: renew it where it was issued, and replace it in %s", k.config.Kubeconfig)
	case k.ca.signer == nil:
		return noKey(k.ca)
	}
	config, err := clientcmd.LoadFromFile(k.config.Kubeconfig)
	if err != nil {
		return err
	}
	if err := k.updateUser(config); err != nil {
		return err
	}
	return k.writeKubeconfig(config)
}

func noKey(by certificateAuthority) error {
	return fmt.Errorf("the key of %s is not in this directory: renew it where the key is kept", by.name)
}

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
			klog.ErrorS(err, "A certificate and its key can't be loaded, and the ones of before are used: put a pair there",
				"certificate", certFile, "key", keyFile)
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
