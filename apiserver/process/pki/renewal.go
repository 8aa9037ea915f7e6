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

// reloadInterval is the time between two loads of a pair.
const reloadInterval = 5 * time.Second

// Follow loads the pair again every reloadInterval, until ctx ends.
//
// Upstream's Run of the pair would log an error at each renewal, because it reads both files as soon as one of them is
// replaced, and finds a key of another certificate. Follow logs an error if two loads in a row fail. The old pair is in
// use meanwhile.
func Follow(ctx context.Context, pair dynamiccertificates.ControllerRunner, certFile, keyFile string) {
	// With a context that has ended, Run only ends the queue that the pair's constructor started.
	defer pair.Run(ctx, 1)
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reloadInterval):
		}
		err := pair.RunOnce(ctx)
		if err == nil {
			failures = 0
		} else if failures++; failures == 2 {
			klog.ErrorS(err, "A certificate and its key can't be loaded, and the ones of before are used: put a pair there",
				"certificate", certFile, "key", keyFile)
		}
	}
}
