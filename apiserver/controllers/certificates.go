package controllers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
)

// certificateWorkers is kube-controller-manager's number.
const certificateWorkers = 5

func newCertificateApproving(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c := approver.NewCSRApprovingController(ctx, cc.kube, cc.informers.Certificates().V1().CertificateSigningRequests())
	return func(ctx context.Context) { c.Run(ctx, certificateWorkers) }, nil
}

func newCertificateCleaner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	requests := cc.informers.Certificates().V1().CertificateSigningRequests()
	synced := requests.Informer().HasSynced
	c := cleaner.NewCSRCleanerController(cc.kube.CertificatesV1().CertificateSigningRequests(), requests)
	return func(ctx context.Context) {
		// Upstream's controller reads the informer at once, and then every hour. With an
		// informer that has not listed yet, it would find nothing for the first hour.
		if cache.WaitForCacheSync(ctx.Done(), synced) {
			c.Run(ctx, 1)
		}
	}, nil
}

// newCertificateSigning builds a controller for each of upstream's signers. It builds none
// without the CA's key.
func newCertificateSigning(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	if _, err := os.Stat(cc.files.CAKey); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	type newSigner func(context.Context, kubernetes.Interface, certificatesinformers.CertificateSigningRequestInformer, string, string, time.Duration) (*signer.CSRSigningController, error)
	lifetime := cc.settings.CSRSigningController.ClusterSigningDuration.Duration
	var signers []*signer.CSRSigningController
	for _, build := range []newSigner{
		signer.NewKubeletServingCSRSigningController,
		signer.NewKubeletClientCSRSigningController,
		signer.NewKubeAPIServerClientCSRSigningController,
		signer.NewLegacyUnknownCSRSigningController,
	} {
		c, err := build(ctx, cc.kube, cc.informers.Certificates().V1().CertificateSigningRequests(), cc.files.CACert, cc.files.CAKey, lifetime)
		if err != nil {
			return nil, err
		}
		signers = append(signers, c)
	}
	return func(ctx context.Context) {
		var group sync.WaitGroup
		for _, c := range signers {
			group.Go(func() { c.Run(ctx, certificateWorkers) })
		}
		group.Wait()
	}, nil
}
