#!/bin/sh
# Joins this host as a node to the cluster at {{server}}. Run it as root. A container runtime (containerd,
# for example), its network configuration and /usr/bin/kubelet must be there.
set -eu
umask 077
mkdir -p /etc/kubernetes/pki
cat >/etc/kubernetes/bootstrap.kubeconfig <<'EOT'
{{kubeconfig}}EOT
cat >/etc/kubernetes/pki/ca.crt <<'EOT'
{{clientCA}}EOT
cat >/etc/kubernetes/kubelet.yaml <<'EOT'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}, webhook: {enabled: true}, anonymous: {enabled: false}}
authorization: {mode: Webhook}
rotateCertificates: true
serverTLSBootstrap: true
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
EOT
cat >/etc/systemd/system/kubelet.service <<'EOT'
[Unit]
Description=kubelet
After=byre.service containerd.service

[Service]
ExecStart=/usr/bin/kubelet --config=/etc/kubernetes/kubelet.yaml --bootstrap-kubeconfig=/etc/kubernetes/bootstrap.kubeconfig --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --cert-dir=/var/lib/kubelet/pki{{kubeletFlags}}
Restart=always
RestartSec=5s

[Install]
WantedBy=multi-user.target
EOT
systemctl daemon-reload
systemctl enable --now kubelet
