export * from './agora.js';
export * from './client.js';
