package controllers

import (
	"context"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/clustertrustbundlepublisher"
	"k8s.io/kubernetes/pkg/features"
)

// certificateWorkers is kube-controller-manager's number.
const certificateWorkers = 5

// newCertificateApproving builds upstream's approver of client certificates, and beside it those of
// serving certificates and of tokens for one node, which kube-controller-manager does not have.
func newCertificateApproving(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	requests := cc.InformerFactory.Certificates().V1().CertificateSigningRequests()
	tokens := nodeTokens{cc.Self}
	if err := tokens.follow(ctx, requests.Informer()); err != nil {
		return nil, err
	}
	serving := &servingApprover{self: cc.Self, id: cc.ServerID, hosts: cc.Hosts}
	var runs []func(context.Context)
	for _, c := range []*certificates.CertificateController{
		approver.NewCSRApprovingController(ctx, cc.kube, requests),
		certificates.NewCertificateController(ctx, "csrapproving-node-token", cc.kube, requests, tokens.handle),
		certificates.NewCertificateController(ctx, "csrapproving-kubelet-serving", cc.kube, requests, serving.handle),
	} {
		runs = append(runs, func(ctx context.Context) { c.Run(ctx, certificateWorkers) })
	}
	return together(runs...), nil
}

func newCertificateCleaner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	requests := cc.InformerFactory.Certificates().V1().CertificateSigningRequests()
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

// newTrustBundlePublisher builds the controller that publishes the CA of this server's
// certificate as a ClusterTrustBundle. It builds none if the feature is off, or if there is no
// such CA. Upstream's constructor takes the CA from a file or from the configuration of a client.
func newTrustBundlePublisher(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ClusterTrustBundle) || len(cc.RootCA) == 0 {
		return nil, nil
	}
	const signerName = "kubernetes.io/kube-apiserver-serving"
	ca, err := dynamiccertificates.NewStaticCAContent("kube-apiserver-serving", cc.RootCA)
	if err != nil {
		return nil, err
	}
	c, err := clustertrustbundlepublisher.NewGAClusterTrustBundlePublisher(signerName, ca, cc.kube)
	return runOf(c, err)
}
