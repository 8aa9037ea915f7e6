package watch

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const alphanumerics = "bcdfghjklmnpqrstvwxz2456789"

// podTexts returns the names and the JSON of Pods of about 6.6 kB, in key order, with what controllers, a scheduler and
// a kubelet set. All Pods of one owner have one template.
func podTexts(n, owners int) (names, texts []string) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(length int, of string) string {
		b := make([]byte, length)
		for i := range b {
			b[i] = of[random.IntN(len(of))]
		}
		return string(b)
	}
	hex := func(length int) string { return text(length, "0123456789abcdef") }
	uid := func() string { return hex(8) + "-" + hex(4) + "-4" + hex(3) + "-" + hex(4) + "-" + hex(12) }
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for owner := range owners {
		app := fmt.Sprintf("service-%05d", owner)
		hash, ownerUID, digest, image := text(10, alphanumerics), uid(), hex(64), text(12, alphanumerics)
		var env, managed strings.Builder
		for i := range 4 + owner%6 {
			key := text(6, "ABCDEFGHIKLMNOPQRSTUVWXYZ")
			fmt.Fprintf(&env, `,{"name":"%s_ADDRESS_%d","value":"https://%s.default.svc:%d/%s"}`, key, i,
				text(8, alphanumerics), 1000+random.IntN(9000), text(10, alphanumerics))
			fmt.Fprintf(&managed, `,"k:{\"name\":\"%s_ADDRESS_%d\"}":{".":{},"f:name":{},"f:value":{}}`, key, i)
		}
		for range (n - len(texts)) / (owners - owner) {
			pod, created := app+"-"+hash+"-"+text(5, alphanumerics), start.Add(time.Duration(random.IntN(1e7))*time.Second)
			at := func(seconds int) string {
				return created.Add(time.Duration(seconds) * time.Second).Format(time.RFC3339)
			}
			ip, host := fmt.Sprintf("10.%d.%d.%d", random.IntN(250), random.IntN(250), random.IntN(250)),
				fmt.Sprintf("192.168.%d.%d", random.IntN(20), random.IntN(250))
			token := "kube-api-access-" + text(5, alphanumerics)
			condition := func(name string, after int) string {
				return fmt.Sprintf(`{"type":"%s","observedGeneration":1,"status":"True","lastProbeTime":null,`+
					`"lastTransitionTime":"%s"}`, name, at(after))
			}
			names = append(names, pod)
			texts = append(texts, fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"%[1]s",`+
				`"generateName":"%[2]s-%[3]s-",`+
				`"namespace":"ns","uid":"%[4]s","generation":1,"creationTimestamp":"%[5]s","labels":{"app":"%[2]s",`+
				`"app.kubernetes.io/component":"server","app.kubernetes.io/part-of":"shop","pod-template-hash":"%[3]s"},`+
				`"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"9090","checksum/config":"%[6]s"},`+
				`"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"%[2]s-%[3]s","uid":"%[7]s",`+
				`"controller":true,"blockOwnerDeletion":true}],"managedFields":[{"manager":"kube-controller-manager",`+
				`"operation":"Update","apiVersion":"v1","time":"%[5]s","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{`+
				`"f:annotations":{".":{},"f:checksum/config":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},`+
				`"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:app.kubernetes.io/component":{},`+
				`"f:app.kubernetes.io/part-of":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},`+
				`"k:{\"uid\":\"%[7]s\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"server\"}":{".":{},"f:env":{".":{}%[8]s},`+
				`"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},`+
				`"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},`+
				`"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},`+
				`"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},`+
				`"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},`+
				`"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},`+
				`"f:terminationGracePeriodSeconds":{}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1",`+
				`"time":"%[9]s","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{`+
				`"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},`+
				`"f:type":{}},`+
				`"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},`+
				`"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},`+
				`"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},`+
				`"k:{\"ip\":\"%[10]s\"}":{".":{},"f:ip":{}}},"f:startTime":{}}},"subresource":"status"}]},`+
				`"spec":{"volumes":[{"name":"config","configMap":{"name":"%[2]s","defaultMode":420}},{"name":"%[11]s",`+
				`"projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{`+
				`"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},{"downwardAPI":{"items":[{`+
				`"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}],"defaultMode":420}}],`+
				`"containers":[{"name":"server","image":"registry.example.com/%[12]s/%[2]s:1.%[13]d.0","ports":[{"name":"http",`+
				`"containerPort":8080,"protocol":"TCP"}],"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"apiVersion":"v1",`+
				`"fieldPath":"metadata.name"}}}%[14]s],"resources":{"limits":{"memory":"512Mi"},"requests":{"cpu":"%[13]d0m",`+
				`"memory":"256Mi"}},"volumeMounts":[{"name":"config","mountPath":"/etc/%[2]s"},{"name":"%[11]s","readOnly":true,`+
				`"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/healthz",`+
				`"port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},`+
				`"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File",`+
				`"imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,`+
				`"dnsPolicy":"ClusterFirst","serviceAccountName":"%[2]s","serviceAccount":"%[2]s",`+
				`"nodeName":"node-%[15]d","securityContext":{},"schedulerName":"default-scheduler",`+
				`"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute",`+
				`"tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute",`+
				`"tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"},`+
				`"status":{"observedGeneration":1,"phase":"Running","conditions":[%[16]s,%[17]s,%[18]s,%[19]s,%[20]s],`+
				`"hostIP":"%[21]s","hostIPs":[{"ip":"%[21]s"}],"podIP":"%[10]s","podIPs":[{"ip":"%[10]s"}],"startTime":"%[5]s",`+
				`"containerStatuses":[{"name":"server","state":{"running":{"startedAt":"%[9]s"}},"lastState":{},"ready":true,`+
				`"restartCount":%[22]d,"image":"registry.example.com/%[12]s/%[2]s:1.%[13]d.0",`+
				`"imageID":"registry.example.com/%[12]s/%[2]s@sha256:%[23]s","containerID":"containerd://%[24]s","started":true,`+
				`"resources":{"limits":{"memory":"512Mi"},"requests":{"cpu":"%[13]d0m","memory":"256Mi"}}}],`+
				`"qosClass":"Burstable"}}`,
				pod, app, hash, uid(), at(0), digest[:32], ownerUID, managed.String(), at(7), ip, token, image,
				1+owner%9, env.String(),
				random.IntN(2000), condition("PodReadyToStartContainers", 3), condition("Initialized", 0), condition("Ready", 7),
				condition("ContainersReady", 7), condition("PodScheduled", 0), host, random.IntN(3), digest, hex(64)))
		}
	}
	return names, texts
}
