package auth

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// cachedUnionCA is the union of the CAs in several files. Authentication calls
// VerifyOptions on each request. Upstream's union parses all certificates in each call;
// cachedUnionCA parses them only after a file has changed.
type cachedUnionCA struct {
	dynamiccertificates.CAContentProvider
	files []*dynamiccertificates.DynamicFileCAContent

	mu      sync.Mutex
	content []byte // the PEM bundle that options was parsed from
	options x509.VerifyOptions
	ok      bool
}

func newCachedUnionCA(files ...*dynamiccertificates.DynamicFileCAContent) *cachedUnionCA {
	providers := make([]dynamiccertificates.CAContentProvider, len(files))
	for i, file := range files {
		providers[i] = file
	}
	return &cachedUnionCA{CAContentProvider: dynamiccertificates.NewUnionCAContentProvider(providers...), files: files}
}

// VerifyOptions implements dynamiccertificates.CAContentProvider. The Roots are
// the same pool as long as the files do not change: cachedX509Authenticator compares
// the pool by address.
func (a *cachedUnionCA) VerifyOptions() (x509.VerifyOptions, bool) {
	content := a.CurrentCABundleContent()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.content == nil || !bytes.Equal(a.content, content) {
		a.content = content
		a.options, a.ok = a.CAContentProvider.VerifyOptions()
	}
	return a.options, a.ok
}

// RunOnce implements dynamiccertificates.ControllerRunner.
func (a *cachedUnionCA) RunOnce(ctx context.Context) error {
	var errs []error
	for _, file := range a.files {
		errs = append(errs, file.RunOnce(ctx))
	}
	return errors.Join(errs...)
}

// Run implements dynamiccertificates.ControllerRunner. Unlike the Run of upstream's
// union, it returns only after the goroutines that watch the files have ended.
func (a *cachedUnionCA) Run(ctx context.Context, workers int) {
	var group sync.WaitGroup
	for _, file := range a.files {
		group.Go(func() { file.Run(ctx, workers) })
	}
	group.Wait()
}
