package controllers

import (
	"context"
	"errors"
	"io/fs"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/bootstrap"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	token "k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"
)

// newServiceAccountToken builds the controller that writes tokens to the Secrets that ask
// for one. It builds none without the key.
func newServiceAccountToken(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	key, err := keyutil.PrivateKeyFromFile(cc.Files.ServiceAccountKey)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	generator, err := token.JWTTokenGenerator(token.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}
	core := cc.InformerFactory.Core().V1()
	c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), cc.kube,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: cc.RootCA})
	return withWorkers(c, cc.ComponentConfig.SAController.ConcurrentSATokenSyncs, err)
}

func newLegacyTokenCleaner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c, err := serviceaccount.NewLegacySATokenCleaner(core.ServiceAccounts(), core.Secrets(), core.Pods(), cc.kube, clock.RealClock{},
		serviceaccount.LegacySATokenCleanerOptions{
			CleanUpPeriod: cc.ComponentConfig.LegacySATokenCleaner.CleanUpPeriod.Duration,
			SyncInterval:  serviceaccount.DefaultCleanerSyncInterval,
		})
	return runOf(c, err)
}

func newBootstrapSigner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c, err := bootstrap.NewSigner(cc.kube, core.Secrets(), core.ConfigMaps(), bootstrap.DefaultSignerOptions())
	return runOf(c, err)
}

func newTokenCleaner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := bootstrap.NewTokenCleaner(cc.kube, cc.InformerFactory.Core().V1().Secrets(), bootstrap.DefaultTokenCleanerOptions())
	return runOf(c, err)
}
