"""The objects that `rallypoint generate kubernetes` prints, to be filled in. Pure."""

from __future__ import annotations

HEAD = """\
# First the token by which the pods of this job know each other. It opens this job only:
#   kubectl create namespace {namespace}
#   rallypoint token --run-id {name} \\
#     | kubectl -n {namespace} create secret generic {name}-token --from-file=token=/dev/stdin
"""
RECORD = """\
# The record of the job, empty at first: so the pods need no right to make one, nor to see others.
apiVersion: v1
kind: ConfigMap
metadata:
  name: "{record}"
  namespace: "{namespace}"
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: "{name}"
  namespace: "{namespace}"
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: "{name}"
  namespace: "{namespace}"
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: ["{record}"]
    verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: "{name}"
  namespace: "{namespace}"
subjects:
  - kind: ServiceAccount
    name: "{name}"
    namespace: "{namespace}"
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: "{name}"
"""
SERVICE = """\
# Names for the pods, {name}-0.{name} and so on.
apiVersion: v1
kind: Service
metadata:
  name: "{name}"
  namespace: "{namespace}"
spec:
  clusterIP: None
  selector:
    batch.kubernetes.io/job-name: "{name}"
  # Pods look for each other before they are ready.
  publishNotReadyAddresses: true
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: "{name}"
  namespace: "{namespace}"
{marks}spec:
{ttl}"""
JOBSET = """\
# The fields are those of JobSet's documentation: its schema was not at hand.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "{name}"
  namespace: "{namespace}"
{marks}spec:
{ttl}  # JobSet makes the headless Service, by which pods have names.
  network:
    enableDNSHostnames: true
    # Pods look for each other before they are ready.
    publishNotReadyAddresses: true
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
"""
TRAINER = """\
# The fields are those of Kubeflow Trainer's documentation: its schema was not at hand.
# For all namespaces: kind ClusterTrainingRuntime, without a namespace, here and in the runtimeRef.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: "{name}"
  namespace: "{namespace}"
  labels:
    trainer.kubeflow.org/framework: torch
spec:
  mlPolicy:
    numNodes: {most}
    # It sets PET_NNODES and PET_NPROC_PER_NODE, which rallypoint run reads. PET_NODE_RANK and
    # PET_MASTER_ADDR have no effect on a job that any pod may lead.
    torch:
      numProcPerNode: {workers}
  template:
    spec:
      network:
        publishNotReadyAddresses: true
      replicatedJobs:
        - name: node
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
"""
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: "{name}"
  namespace: "{namespace}"
{marks}spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: "{name}"
  trainer:
    numNodes: {most}
    image: {image}
    command: {command}
"""
COUNTS = """\
completionMode: Indexed
completions: {most}
parallelism: {most}
# One agent that ends with 0 says that the whole job has succeeded.
successPolicy:
  rules:
    - succeededCount: 1
"""
SPEC = """\
# Workers that fail are restarted in their pods (--max-restarts). This counts pods that end with
# anything but what stands below: 75 (too few pods in time), 137 (out of memory).
backoffLimit: {backoff}
podFailurePolicy:
  rules:
    # Evicted, preempted, or its machine is drained: another pod takes the place at no cost.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    # 143: it was asked to leave, by SIGTERM or rallypoint drain.
    - action: Ignore
      onExitCodes:
        containerName: node
        operator: In
        values: [143]
    # 1: the job has failed, for good. 2: a wrong option, or no rights. Again would be the same.
    - action: FailJob
      onExitCodes:
        containerName: node
        operator: In
        values: [1, 2]
template:
{marks}  spec:
    restartPolicy: Never
    {account}
{pull_secrets}\
    # The Pod Security Standard "restricted" holds, with what stands at the container. This user
    # needs no name in the image; it must be able to read what the script needs.
    securityContext:
      runAsNonRoot: true
      runAsUser: {user}
      seccompProfile: {{type: RuntimeDefault}}
    # Above the drain deadline of {drain:g} s, or SIGKILL comes before the checkpoint is saved.
    terminationGracePeriodSeconds: {grace}
    containers:
      - name: node
        image: {image}
        # It is the first process of the container: nothing stands between it and SIGTERM.
        command: {command}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {{drop: [ALL]}}
        env:
          # The agent keeps it from workers.
          - name: RALLYPOINT_TOKEN
            valueFrom: {{secretKeyRef: {{name: "{name}-token", key: token}}}}
          - name: PET_RDZV_ID
            value: "{name}"
          - name: PET_LOCAL_ADDR
            valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
          # Neighbours get neighbouring ranks: by zone, where pods have that label, then by machine.
          - name: POD_ZONE
            valueFrom:
              fieldRef: {{fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
          # It is also the name by which machines whose workers fail are held back.
          - name: NODE_NAME
            valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}
          - name: RALLYPOINT_TOPOLOGY
            value: $(POD_ZONE)/$(NODE_NAME)
          - name: TORCHELASTIC_HEALTH_CHECK_PORT
            value: "{health}"
        # The agent answers when it has found its job; by itself it gives up after 10 minutes.
        startupProbe:
          httpGet: {{path: /health, port: {health}}}
          periodSeconds: 5
          failureThreshold: 180
        readinessProbe:
          httpGet: {{path: /health, port: {health}}}
        # An agent that is stopped or hangs answers nobody.
        livenessProbe:
          httpGet: {{path: /health, port: {health}}}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
{resources}        volumeMounts:
          - {{name: shm, mountPath: /dev/shm}}
    volumes:
      # Kubernetes gives 64 MiB, too little for NCCL and for data loaders. It counts as memory.
      - name: shm
        emptyDir: {{medium: Memory, sizeLimit: {shm}}}
"""
MEMORY_SAYS = """\
          # By cgroup v2 all processes of a container that lacks memory are killed together (the
          # kubelet sets memory.oom.group, unless its singleProcessOOMKill is true): the agent too.
"""
